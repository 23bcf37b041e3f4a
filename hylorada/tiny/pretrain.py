"""Pretrain the built-in base on plain text files and write its weights, tokenizer and model card.

This command made the shipped files; the model card gives its exact arguments and figures::

    python -m hylorada.tiny.pretrain --train FILE [FILE ...] --held-out FILE --output hylorada/tiny
"""

import argparse
import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer (Sennrich et al. 2016) of ``vocab_size`` tokens.

    Any text survives encoding and decoding.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT
    )


def build_model(vocab_size: int, max_positions: int) -> LlamaForCausalLM:
    """Build a Llama of 1.7 M parameters: 6 layers, hidden size 128, 4 heads, tied embeddings."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config)


def random_crops(
    stream: Tensor, batch_size: int, length: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield endless batches ``[batch_size, length]`` of crops at uniform offsets of the stream."""
    while True:
        starts = torch.randint(len(stream) - length, (batch_size,), generator=generator)
        yield torch.stack([stream[s : s + length] for s in starts.tolist()])


@torch.no_grad()
def held_out_nll(model: LlamaForCausalLM, stream: Tensor, length: int) -> float:
    """Return the mean NLL in nats per predicted token over disjoint blocks of ``length`` tokens."""
    blocks = stream[: len(stream) // length * length].view(-1, length)
    model.eval()
    losses: list[float] = [
        model(input_ids=b, labels=b).loss.item() * len(b) for b in blocks.split(16)
    ]
    model.train()
    return sum(losses) / len(blocks)


def unigram_nll(train: Tensor, held_out: Tensor, vocab_size: int) -> float:
    """Return the NLL of an add-one unigram model of the training tokens.

    It is the score of a model that has learned nothing from context.
    """
    counts = torch.bincount(train, minlength=vocab_size).double() + 1
    return float(-(counts / counts.sum()).log()[held_out].mean())


def learning_rate(step: int, steps: int, peak: float, warmup: int = 200) -> float:
    """Return the learning rate of a step: linear warm-up, then a cosine to a tenth of ``peak``."""
    if step < warmup:
        return peak * (step + 1) / warmup
    share = (step - warmup) / max(1, steps - warmup)
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))


def pretrain(
    model: LlamaForCausalLM, train: Tensor, held_out: Tensor, args: argparse.Namespace
) -> None:
    """Train with AdamW for ``args.steps`` batches of random crops, and print the progress."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1
    )
    batches = random_crops(
        train, args.batch_size, args.block_size, torch.Generator().manual_seed(args.seed)
    )
    began = time.monotonic()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr)
        batch = next(batches)
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == args.steps - 1:
            nll = held_out_nll(model, held_out[: 64 * args.block_size], args.block_size)
            rate = (step + 1) * args.batch_size * args.block_size / (time.monotonic() - began)
            print(
                f"step {step} train {loss.item():.3f} held-out PPL {math.exp(nll):.1f} "
                f"{rate:.0f} tokens/s",
                flush=True,
            )


def model_card(facts: dict[str, object]) -> str:
    """Return the text of the README.md that ships with the weights."""
    return f"""# The built-in base

A Llama-style causal language model of {facts["parameters"]:,} parameters (6 layers, hidden size 128, 4 heads,
{facts["vocab_size"]:,} byte-level BPE tokens, {facts["block_size"]} positions, tied embeddings), so that every command runs
with no network. It is a test subject for adapters, not a useful language model.

| | |
| --- | --- |
| training text | {facts["train_names"]} |
| tokens in it | {facts["train_tokens"]:,} |
| steps | {facts["steps"]:,} of {facts["batch_size"]} x {facts["block_size"]} tokens, AdamW, peak learning rate {facts["lr"]}, seed {facts["seed"]} |
| time | {facts["minutes"]:.0f} minutes on {facts["threads"]} CPU threads |
| held-out text | {facts["held_out_names"]} ({facts["held_out_tokens"]:,} tokens; not trained on, nor was the tokenizer) |
| held-out PPL | **{facts["held_out_ppl"]:.2f}** (fp16 weights as shipped; blocks of {facts["block_size"]} tokens) |
| unigram PPL | {facts["unigram_ppl"]:.2f} (add-one unigram of the training tokens, on the same held-out text) |
| weights | fp16, SHA-256 `{facts["sha256"]}` |

The text of Python's language reference (`pydocs`, the default data of a study) was not trained on. The novels are out of
copyright; the WikiText part is CC BY-SA (Merity et al. 2016).

```
{facts["command"]}
```
"""


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--train", nargs="+", type=Path, required=True, metavar="FILE", help="training text files"
    )
    parser.add_argument(
        "--held-out", nargs="+", type=Path, required=True, metavar="FILE", help="unseen text files"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--vocab-size", type=int, default=3072, help="default: %(default)s")
    parser.add_argument(
        "--block-size", type=int, default=512, help="tokens a block; default: %(default)s"
    )
    parser.add_argument(
        "--batch-size", type=int, default=4, help="blocks per step; default: %(default)s"
    )
    parser.add_argument(
        "--steps", type=int, default=4000, help="optimizer steps; default: %(default)s"
    )
    parser.add_argument(
        "--lr", type=float, default=3e-3, help="peak learning rate; default: %(default)s"
    )
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    return parser.parse_args()


def main() -> None:
    """Train the tokenizer and the model, measure both, and write everything to ``--output``."""
    args = parse_arguments()
    torch.manual_seed(args.seed)
    texts = [p.read_text(encoding="utf-8") for p in args.train]
    unseen = [p.read_text(encoding="utf-8") for p in args.held_out]
    tokenizer = train_tokenizer(texts, args.vocab_size)
    train, held_out = (
        torch.tensor(tokenizer(END_OF_TEXT.join(t))["input_ids"]) for t in (texts, unseen)
    )
    print(f"{len(train)} training tokens, {len(held_out)} held-out tokens", flush=True)
    model = build_model(args.vocab_size, args.block_size)
    began = time.monotonic()
    pretrain(model, train, held_out, args)
    minutes = (time.monotonic() - began) / 60

    model.half().save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    nll = held_out_nll(model.float(), held_out, args.block_size)
    facts: dict[str, object] = {
        **vars(args),
        "parameters": sum(p.numel() for p in model.parameters()),
        "train_names": ", ".join(p.name for p in args.train),
        "held_out_names": ", ".join(p.name for p in args.held_out),
        "train_tokens": len(train),
        "held_out_tokens": len(held_out),
        "minutes": minutes,
        "threads": torch.get_num_threads(),
        "held_out_ppl": math.exp(nll),
        "unigram_ppl": math.exp(unigram_nll(train, held_out, args.vocab_size)),
        "sha256": hashlib.sha256((args.output / "model.safetensors").read_bytes()).hexdigest(),
        "command": f"python -m hylorada.tiny.pretrain --steps {args.steps} --train "
        + " ".join(p.name for p in args.train)
        + " --held-out "
        + " ".join(p.name for p in args.held_out)
        + " --output hylorada/tiny",
    }
    (args.output / "README.md").write_text(model_card(facts), encoding="utf-8")
    print(
        json.dumps({k: v for k, v in facts.items() if isinstance(v, int | float | str)}, indent=1)
    )


if __name__ == "__main__":
    main()
