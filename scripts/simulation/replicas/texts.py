"""What docs/scale.md says beside its figures."""

INTRO = """# Scale

What sections call *simulated* ran in virtual time, in one process. What they call *live* ran as several processes
on one machine of two cores, with real servers, sockets and a real router: [two
replicas](#live-two-replicas-on-a-core-each) that compute, and [sixteen](#live-but-for-the-device-1-to-16-processes)
whose device sleeps. Nothing here ran on several devices or machines. Made by

```sh
.venv/bin/python -m scripts.simulation --replicas    # minutes: docs/results/replicas.json, this page and its plot
.venv/bin/python -m scripts.scaling pinned --smg SMG    # SMG's command: docs/results/scaling.json, this page
.venv/bin/python -m scripts.scaling sleeping --smg SMG
```

Simulated: one to sixteen copies of the server's own scheduler (`jaxgen/scheduling`) run in virtual time, by the
loop of [simulation.md](simulation.md) with one clock for all. A step costs what is *calibrated* there: 70B on four
A100-80G, by two token latencies of FastGen's publication. Replicas share nothing but the router. The load grows
with them: of so many replicas it is that of one so often, each request, each client or the rate of arrivals, in an
order drawn from a seed. So *efficiency* is requests/s divided by those of one replica and by the number of
replicas; a run repeats to the bit. All these figures are of one seed (42), from an empty start to the last answer;
those of few replicas are of few requests.

Routing takes no time and what a router knows is never old; a real one reads metrics that are seconds old, and asks
over a network. How much of the differences between routers that leaves is not known.

- **round robin**: what FastGen's balancer does.
- **fewest requests**: those that were sent and are not answered. **fewest prompt tokens**: of the prompts that were
  sent and whose first token has not come, then the fewest requests. A router knows both by itself.
- **prefix, bounded**: each prefix (the first 64 tokens) has an order of replicas of its own, and goes to the first
  that would not have more than 1.25 times the mean of unanswered requests. **no bound**: always to the first.
- **quotes**: the router asks replicas when the first token would come, and takes the earliest. The answer is what the
  scheduler predicts for requests with latency targets (`ServicePolicy.prediction`, [service.md](service.md)), so it
  knows queue, steps in flight and what is cached. It asks two that are drawn, all, or one that is drawn beside the
  one to which the prefix belongs. The server's route for that is `/v1/latency`. These figures are older than it: what
  was predicted here did not know of the rule by which steps are filled. *After its quote*: how much later than quoted
  first tokens came: no quote knows of later requests, of which shorter prompts may go first, and prompts that wait
  are counted whole, whatever of them is cached.
"""

ABOUT = {
    "fastgen": """
Prompts of 2,600 and answers of 60 tokens on average, 512 requests for each replica in a closed loop. FastGen
published 1.46 requests/s of one replica and 23.7 of sixteen (16.2 times; replicas that share nothing, caches
included, cannot give more than 16) behind round robin. Here it gives 15.9 times. Replicas that share nothing scale as
well as the router shares the load out, which every router here does but affinity: no two of these prompts share a
prefix, so that it draws a replica, up to its bound. So the published factor says that FastGen's balancer cost little;
it says nothing of a server. What a router changes is the first token: its P95 is 3.5 s with sixteen replicas in turn
and 2.4 s by prompt tokens.""",
    "mixed": """
FastGen's lengths, but every tenth prompt has 7,000 tokens; 256 requests for each replica, which arrive by a Poisson
process whatever is answered (efficiency says only that all keep up). Round robin is not bad here, since it also makes
each replica's arrivals regular. The fewest requests are no better: most of them decode, which costs the next prompt
little. What counts is the prompts before it: the P95 of first tokens with sixteen replicas is 3.4 s in turn, 1.9 s by
prompt tokens or by quotes of all, and 3.6 s by quotes of two: two drawn replicas are little to choose from.""",
    "shared": """
Prompts begin with one of 128 system prompts of 1,500 tokens, the k-th of which is 1 / k times as frequent as the
first; 1,100 tokens of their own and answers of 60 on average; 256 requests for each replica in a closed loop. Prefix
caching is on, from empty caches of 96,000 tokens each: half of the prefixes, or fewer, beside what runs. *Found
cached*: of all prompt tokens, of which 58 % are in prefixes.

In turn each cache holds the same popular prefixes, so sixteen find no more than one. By prefix they hold different
ones, which is why efficiency passes 100 %. Without a bound the replica of the most popular prefix has a queue of its
own: the most is found and the throughput is half. Quotes of all know what is cached and what waits, and need no
bound: as much is found as by prefix, at the most requests/s and the earliest first tokens. Quotes of two rarely ask
the replica that has the prefix; asking its home beside another brings much of the rest.""",
}

NOT_HERE = """## What is not here

- **Routers that read metrics**, live: SMG is measured in turn alone. What old metrics cost is in no figure above.
- **What a machine with CPUs only cannot show**: how GPUs scale, what network cards and NCCL do, and whether hosts
  that share a link, a disk or a power limit slow each other down.
- **Costs of FastGen's system, not of jaxgen's.** They are calibrated by two of its figures; jaxgen has not run 70B on
  four A100.
"""
