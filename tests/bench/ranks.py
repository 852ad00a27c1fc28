"""Python ranks that stay alive between rounds, so that systems can be timed in turn on one machine."""
import multiprocessing
import os
import socket
import time
import traceback

READY_S = 300
ROUND_S = 300


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _serve(make, rank, world, port, pipe):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
                      DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1")
    os.dup2(2, 1)  # what libraries print is no table
    try:
        import torch
        import torch.distributed as dist
        torch.set_num_threads(1)
        dist.init_process_group("gloo", rank=rank, world_size=world)
        work = make(rank, world)
        pipe.send(("ready", None))
        while (argument := pipe.recv()) is not None:
            pipe.send(("done", work(argument)))
    except EOFError:
        pass
    except BaseException:
        pipe.send(("error", traceback.format_exc()))


class Ranks:
    """`world` processes, each with the callable that make(rank, world) returned; run(x) calls all of them with x.

    make must be a top-level function (the processes are spawned). One thread a process.
    """

    def __init__(self, make, world):
        os.environ["OMP_NUM_THREADS"] = "1"  # libgomp reads it when a child starts
        context = multiprocessing.get_context("spawn")
        port = free_port()
        self._pipes, self._processes = [], []
        for rank in range(world):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(make, rank, world, port, there), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        try:
            self._answers(READY_S)
        except BaseException:
            self.close()
            raise

    def _answers(self, seconds):
        deadline, answers = time.monotonic() + seconds, []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(max(0, deadline - time.monotonic())):
                raise RuntimeError(f"rank {rank} did not answer within {seconds} s")
            kind, value = pipe.recv()
            if kind == "error":
                raise RuntimeError(f"rank {rank} failed:\n{value}")
            answers.append(value)
        return answers

    def run(self, argument):
        for pipe in self._pipes:
            pipe.send(argument)
        return self._answers(ROUND_S)

    def pids(self):
        return [process.pid for process in self._processes]

    def close(self):
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
