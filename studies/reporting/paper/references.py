"""BibTeX entries of the works that a methods paragraph can cite."""

from collections.abc import Iterable

_ENTRIES = {
    "akiba2019optuna": r"""@inproceedings{akiba2019optuna,
  title = {Optuna: A Next-generation Hyperparameter Optimization Framework},
  author = {Akiba, Takuya and Sano, Shotaro and Yanase, Toshihiko and Ohta, Takeru
    and Koyama, Masanori},
  booktitle = {Proceedings of the 25th ACM SIGKDD International Conference on Knowledge
    Discovery and Data Mining},
  pages = {2623--2631},
  year = {2019}
}""",
    "bergstra2011tpe": r"""@inproceedings{bergstra2011tpe,
  title = {Algorithms for Hyper-Parameter Optimization},
  author = {Bergstra, James and Bardenet, R{\'e}mi and Bengio, Yoshua and K{\'e}gl, Bal{\'a}zs},
  booktitle = {Advances in Neural Information Processing Systems},
  volume = {24},
  year = {2011}
}""",
    "cameron2015cluster": r"""@article{cameron2015cluster,
  title = {A Practitioner's Guide to Cluster-Robust Inference},
  author = {Cameron, A. Colin and Miller, Douglas L.},
  journal = {Journal of Human Resources},
  volume = {50},
  number = {2},
  pages = {317--372},
  year = {2015}
}""",
    "chen2024longlora": r"""@inproceedings{chen2024longlora,
  title = {{LongLoRA}: Efficient Fine-tuning of Long-Context Large Language Models},
  author = {Chen, Yukang and Qian, Shengju and Tang, Haotian and Lai, Xin and Liu, Zhijian
    and Han, Song and Jia, Jiaya},
  booktitle = {International Conference on Learning Representations},
  year = {2024},
  note = {arXiv:2309.12307}
}""",
    "cochran1964behrens": r"""@article{cochran1964behrens,
  title = {Approximate Significance Levels of the {Behrens--Fisher} Test},
  author = {Cochran, William G.},
  journal = {Biometrics},
  volume = {20},
  number = {1},
  pages = {191--195},
  year = {1964}
}""",
    "hodges1963estimates": r"""@article{hodges1963estimates,
  title = {Estimates of Location Based on Rank Tests},
  author = {Hodges, Jr., J. L. and Lehmann, E. L.},
  journal = {The Annals of Mathematical Statistics},
  volume = {34},
  number = {2},
  pages = {598--611},
  year = {1963}
}""",
    "holm1979simple": r"""@article{holm1979simple,
  title = {A Simple Sequentially Rejective Multiple Test Procedure},
  author = {Holm, Sture},
  journal = {Scandinavian Journal of Statistics},
  volume = {6},
  number = {2},
  pages = {65--70},
  year = {1979}
}""",
    "hu2022lora": r"""@inproceedings{hu2022lora,
  title = {{LoRA}: Low-Rank Adaptation of Large Language Models},
  author = {Hu, Edward J. and Shen, Yelong and Wallis, Phillip and Allen-Zhu, Zeyuan
    and Li, Yuanzhi and Wang, Shean and Wang, Lu and Chen, Weizhu},
  booktitle = {International Conference on Learning Representations},
  year = {2022},
  note = {arXiv:2106.09685}
}""",
    "kalajdzievski2023rslora": r"""@misc{kalajdzievski2023rslora,
  title = {A Rank Stabilization Scaling Factor for Fine-Tuning with {LoRA}},
  author = {Kalajdzievski, Damjan},
  year = {2023},
  note = {arXiv:2312.03732}
}""",
    "lazarus2018har": r"""@article{lazarus2018har,
  title = {{HAR} Inference: Recommendations for Practice},
  author = {Lazarus, Eben and Lewis, Daniel J. and Stock, James H. and Watson, Mark W.},
  journal = {Journal of Business and Economic Statistics},
  volume = {36},
  number = {4},
  pages = {541--559},
  year = {2018}
}""",
    "li2020asha": r"""@inproceedings{li2020asha,
  title = {A System for Massively Parallel Hyperparameter Tuning},
  author = {Li, Liam and Jamieson, Kevin and Rostamizadeh, Afshin and Gonina, Ekaterina
    and Ben-tzur, Jonathan and Hardt, Moritz and Recht, Benjamin and Talwalkar, Ameet},
  booktitle = {Proceedings of Machine Learning and Systems},
  volume = {2},
  year = {2020},
  note = {arXiv:1810.05934}
}""",
    "liaw2018tune": r"""@misc{liaw2018tune,
  title = {Tune: A Research Platform for Distributed Model Selection and Training},
  author = {Liaw, Richard and Liang, Eric and Nishihara, Robert and Moritz, Philipp
    and Gonzalez, Joseph E. and Stoica, Ion},
  year = {2018},
  note = {arXiv:1807.05118}
}""",
    "liu2024dora": r"""@inproceedings{liu2024dora,
  title = {{DoRA}: Weight-Decomposed Low-Rank Adaptation},
  author = {Liu, Shih-Yang and Wang, Chien-Yi and Yin, Hongxu and Molchanov, Pavlo
    and Wang, Yu-Chiang Frank and Cheng, Kwang-Ting and Chen, Min-Hung},
  booktitle = {International Conference on Machine Learning},
  year = {2024},
  note = {arXiv:2402.09353}
}""",
    "loshchilov2019adamw": r"""@inproceedings{loshchilov2019adamw,
  title = {Decoupled Weight Decay Regularization},
  author = {Loshchilov, Ilya and Hutter, Frank},
  booktitle = {International Conference on Learning Representations},
  year = {2019},
  note = {arXiv:1711.05101}
}""",
    "owen1998scrambling": r"""@article{owen1998scrambling,
  title = {Scrambling {Sobol'} and {Niederreiter--Xing} Points},
  author = {Owen, Art B.},
  journal = {Journal of Complexity},
  volume = {14},
  number = {4},
  pages = {466--489},
  year = {1998}
}""",
    "raffel2020t5": r"""@article{raffel2020t5,
  title = {Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer},
  author = {Raffel, Colin and Shazeer, Noam and Roberts, Adam and Lee, Katherine
    and Narang, Sharan and Matena, Michael and Zhou, Yanqi and Li, Wei and Liu, Peter J.},
  journal = {Journal of Machine Learning Research},
  volume = {21},
  number = {140},
  pages = {1--67},
  year = {2020}
}""",
    "schuirmann1987tost": r"""@article{schuirmann1987tost,
  title = {A Comparison of the Two One-Sided Tests Procedure and the Power Approach for
    Assessing the Equivalence of Average Bioavailability},
  author = {Schuirmann, Donald J.},
  journal = {Journal of Pharmacokinetics and Biopharmaceutics},
  volume = {15},
  number = {6},
  pages = {657--680},
  year = {1987}
}""",
    "zhang2023llamaadapter": r"""@misc{zhang2023llamaadapter,
  title = {{LLaMA-Adapter}: Efficient Fine-tuning of Language Models with Zero-init Attention},
  author = {Zhang, Renrui and Han, Jiaming and Liu, Chris and Gao, Peng and Zhou, Aojun
    and Hu, Xiangfei and Yan, Shilin and Lu, Pan and Li, Hongsheng and Qiao, Yu},
  year = {2023},
  note = {arXiv:2303.16199}
}""",
}


def bibliography(keys: Iterable[str]) -> str:
    """Return the BibTeX entries of some works, by their keys."""
    return "".join(f"{_ENTRIES[key]}\n\n" for key in sorted(set(keys)))
