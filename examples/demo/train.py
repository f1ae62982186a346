"""Trains the demo model on the CPU: `python train.py` writes the checkpoint into this folder.

Two processes of one thread each share the work. Everything follows from the seed and the token counts: rows
are drawn from (seed, step, process), so a run that is stopped continues with --resume as if it had not been.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from chat import Encoder, load_template, pack_rows
from export import export_checkpoint, write_static_files
from mixture import training_dialogue
from model import DemoConfig, DemoModel
from tokenizer import read_chapters, tokenizer_config, train_tokenizer
from tokenizers import Tokenizer
from torch import Tensor

HERE = Path(__file__).parent
PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """A training run in token counts: constant rate, then linear decay; MTP joins for the last part.

    A second, shorter decay of `finish_tokens` from `finish_rate` times the full rate follows `tokens`.
    """

    seed: int
    tokens: int
    decay_tokens: int
    mtp_tokens: int
    long_tokens: int
    step_tokens: int
    warmup_tokens: int = 100_000
    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    mtp_weight: float = 0.3
    save_every: int = 250_000
    finish_tokens: int = 600_000
    finish_rate: float = 0.4

    def rate_factor(self, done: int) -> float:
        """Return the learning-rate factor after `done` tokens."""
        if done >= self.tokens:
            return self.finish_rate * max(0.0, self.tokens + self.finish_tokens - done) / self.finish_tokens
        warm = min(1.0, (done + self.step_tokens) / self.warmup_tokens)
        return warm * min(1.0, max(0.0, (self.tokens - done) / self.decay_tokens))

    def row_length(self, done: int) -> int:
        return 1024 if done >= self.tokens - self.long_tokens else 512


class Muon:
    """Momentum with orthogonalised updates for matrices; each process orthogonalises its share."""

    def __init__(self, parameters: list[Tensor], rank: int, momentum: float = 0.95) -> None:
        self.parameters, self.rank, self.momentum = parameters, rank, momentum
        self.buffers = [torch.zeros_like(p) for p in parameters]

    def step(self, rate: float) -> None:
        updates = [torch.zeros_like(p) for p in self.parameters]
        for i, (p, buffer) in enumerate(zip(self.parameters, self.buffers, strict=True)):
            if p.grad is None:
                continue
            buffer.mul_(self.momentum).add_(p.grad, alpha=1 - self.momentum)
            if i % PROCESSES == self.rank:
                blended = p.grad.lerp(buffer, self.momentum)
                updates[i] = orthogonalise(blended) * max(1.0, p.shape[0] / p.shape[1]) ** 0.5
        sum_over_processes(updates)
        for p, update in zip(self.parameters, updates, strict=True):
            p.sub_(update, alpha=rate)


def orthogonalise(matrix: Tensor) -> Tensor:
    """Return an approximation of U Vᵀ of the matrix' SVD by five quintic Newton-Schulz steps."""
    x = matrix.t() if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.t()
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.t() if matrix.shape[0] > matrix.shape[1] else x


def sum_over_processes(tensors: list[Tensor]) -> None:
    flat = torch.cat([t.reshape(-1) for t in tensors])
    dist.all_reduce(flat)
    for tensor, piece in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(piece.view_as(tensor))


def is_muon_parameter(name: str, parameter: Tensor) -> bool:
    small = ("embed_tokens", "in_proj_a", "in_proj_b")
    return parameter.ndim == 2 and not any(part in name for part in small)


class Trainer:
    """One process of the run."""

    def __init__(self, plan: Plan, rank: int, work: Path, text: Path | None) -> None:
        self.plan, self.rank, self.work = plan, rank, work
        torch.manual_seed(plan.seed)
        self.model = DemoModel(DemoConfig())
        named = list(self.model.named_parameters())
        self.muon = Muon([p for n, p in named if is_muon_parameter(n, p)], rank)
        rest = [p for n, p in named if not is_muon_parameter(n, p)]
        self.adam = torch.optim.AdamW(rest, lr=plan.adam_rate, betas=(0.9, 0.98), weight_decay=0.0)
        tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
        self.encoder = Encoder(tokenizer, load_template())
        self.chapters = [self.encoder.text(t).ids for t in read_chapters(text)[0]]
        self.done = 0

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        length = self.plan.row_length(self.done)
        rng = Random(f"{self.plan.seed}/{self.done}/{self.rank}")
        rows = pack_rows(rng, self.encoder, self.chapters, self.plan.step_tokens // length // PROCESSES, length)
        return torch.from_numpy(rows.ids), torch.from_numpy(rows.targets), torch.from_numpy(rows.positions)

    def step(self) -> tuple[float, float]:
        """Train on one batch; return this process' (main, MTP) losses."""
        with_mtp = self.done >= self.plan.tokens - self.plan.mtp_tokens
        main, mtp = self.model.losses(*self.batch(), with_mtp)
        (main + self.plan.mtp_weight * mtp).backward()
        with torch.no_grad():
            used = [p for p in self.model.parameters() if p.grad is not None]
            gradients = [p.grad for p in used if p.grad is not None]
            sum_over_processes(gradients)
            torch._foreach_div_(gradients, PROCESSES)
            torch.nn.utils.clip_grad_norm_(used, 1.0)
            factor = self.plan.rate_factor(self.done)
            self.muon.step(self.plan.muon_rate * factor)
            for group in self.adam.param_groups:
                group["lr"] = self.plan.adam_rate * factor
            self.adam.step()
        self.model.zero_grad(set_to_none=True)
        self.done += self.plan.step_tokens
        return main.item(), mtp.item()

    def run(self, limit: int) -> None:
        started, first, saved = time.time(), self.done, self.done
        while self.done < min(limit, self.plan.tokens + self.plan.finish_tokens):
            main, mtp = self.step()
            if self.rank == 0 and (self.done // self.plan.step_tokens) % 5 == 0:
                speed = (self.done - first) / (time.time() - started)
                print(f"{self.done:8d} tokens  loss {main:.4f}  mtp {mtp:.4f}  {speed:.0f} tokens/s", flush=True)
            if self.rank == 0 and self.done - saved >= self.plan.save_every:
                self.save()
                saved = self.done
        if self.rank == 0:
            self.save()

    def save(self) -> None:
        state = {
            "done": self.done,
            "model": self.model.state_dict(),
            "muon": self.muon.buffers,
            "adam": self.adam.state_dict(),
        }
        path = self.work / f"state_{self.done:08d}.pt"
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)

    def load(self, path: Path) -> None:
        state = torch.load(path)
        self.done = state["done"]
        self.model.load_state_dict(state["model"])
        for buffer, saved in zip(self.muon.buffers, state["muon"], strict=True):
            buffer.copy_(saved)
        self.adam.load_state_dict(state["adam"])


def worker(rank: int, plan: Plan, work: Path, text: Path | None, limit: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{work}/rendezvous", rank=rank, world_size=PROCESSES)
    trainer = Trainer(plan, rank, work, text)
    states = sorted(work.glob("state_*.pt"))
    if states:
        trainer.load(states[-1])
    dist.barrier()
    trainer.run(limit)
    dist.destroy_process_group()


def make_tokenizer(seed: int, text: Path | None) -> Tokenizer:
    rng, template = Random(f"{seed}/tokenizer"), load_template()
    dialogues = [training_dialogue(rng) for _ in range(12_000)]
    rendered = [template.render(messages=d.messages, tools=d.tools) for d in dialogues]
    return train_tokenizer(read_chapters(text)[0] + rendered)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("demo_train"), help="folder of the run's states")
    parser.add_argument("--output", type=Path, default=HERE, help="folder of the finished checkpoint")
    parser.add_argument("--text", type=Path, help="output of `bible -f Gen1:1-Rev22:21`; default: run it")
    parser.add_argument("--resume", action="store_true", help="continue from the newest state in --work")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=5_200_000, help="before the final short decay")
    parser.add_argument("--decay-tokens", type=int, default=1_500_000)
    parser.add_argument("--mtp-tokens", type=int, default=1_500_000)
    parser.add_argument("--long-tokens", type=int, default=600_000, help="how many of the last use rows of 1024")
    parser.add_argument("--step-tokens", type=int, default=6144)
    parser.add_argument("--stop-at", type=int, default=1 << 60, help="stop (resumably) after this many tokens")
    arguments = parser.parse_args()
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    (work / "rendezvous").unlink(missing_ok=True)
    if not arguments.resume:
        if list(work.glob("state_*.pt")):
            parser.error(f"{work} holds states of an earlier run: give --resume or another --work")
        tokenizer = make_tokenizer(arguments.seed, arguments.text)
        tokenizer.save(str(work / "tokenizer.json"))
        write_static_files(arguments.output, tokenizer, tokenizer_config(tokenizer), DemoConfig())
    plan = Plan(
        arguments.seed, arguments.tokens, arguments.decay_tokens, arguments.mtp_tokens, arguments.long_tokens,
        arguments.step_tokens,
    )  # fmt: skip
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    mp.spawn(worker, args=(plan, work, arguments.text, arguments.stop_at), nprocs=PROCESSES)
    export_checkpoint(sorted(work.glob("state_*.pt"))[-1], arguments.output)


if __name__ == "__main__":
    main()
