# Two targets: `docker build --target cpu .` and `docker build --target cuda .` (--build-arg CUDA=cuda13 for CUDA 13).
FROM python:3.12-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 PATH=/opt/jaxgen/bin:$PATH

FROM base AS sources
RUN python -m venv /opt/jaxgen
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY scripts/ci/constraints.txt scripts/ci/constraints.txt
# The build's own tools are pinned by variables alone: the second since pip 25.3.
ENV PIP_CONSTRAINT=/src/scripts/ci/constraints.txt PIP_BUILD_CONSTRAINT=/src/scripts/ci/constraints.txt
COPY pallas_kernels pallas_kernels
COPY jaxgen jaxgen
COPY weights weights
COPY server server

FROM sources AS build-cpu
RUN pip install --no-cache-dir --no-compile --constraint scripts/ci/constraints.txt ".[events,gguf,otel,redis,s3,sentencepiece]"

FROM sources AS build-cuda
ARG CUDA=cuda12
RUN pip install --no-cache-dir --no-compile --constraint scripts/ci/constraints.txt ".[events,gguf,otel,redis,s3,sentencepiece,${CUDA}]"

FROM base AS runtime
RUN useradd --uid 10001 --user-group --create-home jaxgen \
    && install --directory --owner=jaxgen --group=jaxgen /cache
# What speeds up the next start, and what comes from the hub.
ENV JAXGEN_HOST=0.0.0.0 JAXGEN_PORT=8000 JAXGEN_CACHE_DIR=/cache/jaxgen HF_HOME=/cache/huggingface
VOLUME /cache
WORKDIR /home/jaxgen
EXPOSE 8000
# /livez is bad while the engine starts, which is why the first minutes do not count.
HEALTHCHECK --start-period=15m --start-interval=2s --interval=10s --timeout=5s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(f'http://127.0.0.1:{os.environ[\"JAXGEN_PORT\"]}/livez', timeout=4)"]
ENTRYPOINT ["jaxgen", "serve"]

FROM runtime AS cpu
# The kernels are compiled for the very CPU that they run on, at the first start.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-cpu /opt/jaxgen /opt/jaxgen
USER 10001:10001

# CUDA's libraries are in Python's packages; of the host it needs the driver and the NVIDIA container toolkit.
FROM runtime AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /opt/jaxgen /opt/jaxgen
USER 10001:10001
