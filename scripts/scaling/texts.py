"""The words of the live part of docs/scale.md."""

PINNED = """
Two `jaxgen serve` of 88 million random parameters in bfloat16 on {machine}, each pinned to a core (`taskset`), so
that each computes with one thread; 8 clients for each replica in a closed loop, prompts of 256 and answers of 60
tokens on average, as texts. *One alone*: the other waits. *Clients of its own*: each replica has half of the
clients, and nothing chooses. *No router, in turn*: the client sends to each in turn. *SMG*: the same two behind SMG
1.13.0, round robin. Client and router have no cores of their own, but share those of the replicas. {rounds} rounds
in turn, windows of {window} s after {warmup} s: medians.

Two replicas answer as much as two of one alone: on these two cores they do not slow each other down. What SMG costs
is less than the difference between two rounds of the same load, and it keeps 0.01 of a core busy. In turn and
behind SMG some first tokens come late (P95 3.7 to 3.9 s, 1.5 s with clients of their own) and rounds differ more:
each replica gets as many requests as the other, whatever waits there. A window has some 37 answers, so that P95 is
of the slowest two."""

SLEEPING = """
Processes of jaxgen's server, scheduler and engine, whose device computes nothing: a step sleeps for as long as it
takes in the simulation above (0.07 s of decodes, 0.19 s of a full step). All share two cores of {machine}, with
client and router. FastGen's load, 16 clients for each process, as texts, behind SMG 1.13.0, round robin; *no
router, in turn*: the client sends in turn; *virtual time*: the same load and window simulated behind round robin.
Windows of {window} s after {warmup} s, once: few replicas answer few requests in it, so compare with virtual time,
which has the same window. A process has up to {resident} MiB resident.

Sixteen answer 16.0 times as many tokens as one, and in virtual time 16.1 times; of its tokens/s they have 99 %. In
this one run first tokens came 0.16 s later behind SMG (P50; P95 0.3 s) than in virtual time, and as there without a
router. So processes, sockets, streams and the router add up as the simulation says. The device is the bound here,
and not the host, of which all of it keeps 0.4 of two cores busy. It shows nothing of GPUs, and no network."""
