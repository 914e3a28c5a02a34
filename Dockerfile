# The gateway in a container: no compiler, no root, only the installed packages.
#
#   docker build -t racer-gateway .
#   docker build -t racer-gateway:cuda \
#     --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
#
# The CUDA build needs the NVIDIA container toolkit on the host, and `docker run --gpus ...`.
# `tests/deploy/test_replay.py` carries out every step of this file without a container engine.

# For a build that never moves, give a digest: --build-arg PYTHON_IMAGE=python@sha256:...
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

# From here on in the order in which things change: torch, the other packages, the code.
# torch alone, so that nothing else decides which build it is; the same version as in the Makefile.
RUN PIP_INDEX_URL="${TORCH_INDEX}" pip install torch==2.13.0
COPY requirements.lock ./
# With every extra that a configuration or an upload can ask for, since nothing is added later:
# formulas, traces, parquet, a shared store.
RUN pip install --no-deps --require-hashes --requirement requirements.lock
COPY LICENSE README.md pyproject.toml ./
COPY app app
COPY racer_core racer_core
# Without build isolation: with the setuptools of the lock, which torch needs anyway. pip has
# then done its work, and what runs needs no installer.
RUN pip install --no-deps --no-build-isolation . \
 && pip check \
 && pip uninstall --yes pip

FROM ${PYTHON_IMAGE} AS runtime
# A fixed number, so that mounted folders can be given to it on the host.
RUN groupadd --gid 10001 racer \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/racer --no-create-home \
      --shell /usr/sbin/nologin racer \
 && mkdir -p /etc/racer/artifact /var/lib/racer \
 && chown 10001:10001 /var/lib/racer
COPY --from=builder /opt/venv /opt/venv
# The one writable place holds the store and what the encoder's hub name makes it download.
ENV PATH=/opt/venv/bin:$PATH \
    HF_HOME=/var/lib/racer/huggingface \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/racer
VOLUME /var/lib/racer
EXPOSE 8080
# Asks for life, not for readiness: a gateway without a calibration must stay up to be given one.
# http.client takes no notice of proxy variables. The start period covers a first download.
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 \
  CMD ["python", "-c", "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', 8080, timeout=4); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["racer"]
# --host and --port stand here so that they fit EXPOSE and HEALTHCHECK, whatever the file says. A
# container's 0.0.0.0 is no loopback address: without RACER_DATA_KEY the gateway refuses to start.
CMD ["serve", "--config", "/etc/racer/racer.yaml", "--host", "0.0.0.0", "--port", "8080"]
