# The gateway in a container: no compiler, no root, only the installed packages.
#
#   docker build -t racer-gateway .
#   docker build -t racer-gateway:cuda \
#     --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
#
# The CUDA build needs the NVIDIA container toolkit on the host, and `docker run --gpus ...`.
# `tests/deploy/test_replay.py` executes every step of this file without a container engine.

# For a reproducible build pass a digest: --build-arg PYTHON_IMAGE=python@sha256:...
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS builder
# Which torch; empty takes the package index's own build.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /src

# Layers in the order of their rate of change: torch, the other packages, the code.
# torch alone, so that no other package selects its build; the same version as in the Makefile.
RUN PIP_INDEX_URL="${TORCH_INDEX}" pip install torch==2.13.0
COPY requirements.lock ./
# With every extra that a configuration or an upload can need: formulas, traces, parquet, a shared
# store, an artifact in a bucket.
RUN pip install --no-deps --require-hashes --requirement requirements.lock
COPY LICENSE README.md pyproject.toml racer_gateway.py ./
COPY app app
COPY racer_core racer_core
# Without build isolation: uses the setuptools of the lock, which torch needs anyway. pip is removed
# afterwards; the running image needs no installer.
RUN pip install --no-deps --no-build-isolation . \
 && pip check \
 && pip uninstall --yes pip

FROM ${PYTHON_IMAGE} AS runtime
# A fixed uid, so that mounted folders can be owned by it on the host. A new volume takes the owner of
# the folder that it covers.
RUN groupadd --gid 10001 racer \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/racer --no-create-home \
      --shell /usr/sbin/nologin racer \
 && mkdir -p /etc/racer/artifact /var/lib/racer \
 && chown 10001:10001 /var/lib/racer /etc/racer/artifact
COPY --from=builder /opt/venv /opt/venv
# The only folder that a gateway writes to holds the store and models downloaded from the hub.
ENV PATH=/opt/venv/bin:$PATH \
    HF_HOME=/var/lib/racer/huggingface \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/racer
VOLUME /var/lib/racer
EXPOSE 8080
# Liveness, not readiness: a gateway without a calibration must stay up to receive one. http.client
# ignores proxy variables. The start period covers a first download.
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 \
  CMD ["python", "-c", "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', 8080, timeout=4); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["racer"]
# --host and --port match EXPOSE and HEALTHCHECK and override the configuration file. 0.0.0.0 is no
# loopback address: without RACER_DATA_KEY the gateway refuses to start.
CMD ["serve", "--config", "/etc/racer/racer.yaml", "--host", "0.0.0.0", "--port", "8080"]
