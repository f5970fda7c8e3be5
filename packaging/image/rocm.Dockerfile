# The evaluation image for AMD's GPUs: ROCm's compiler and profiler, which the base
# has, and Python with torch and Triton. kbnode runner is in every job's container
# by itself.
#
# kbnode image build --build-arg NAME=VALUE sets what stands behind ARG. A base by
# its digest, rocm/dev-ubuntu-24.04@sha256:…, is one that cannot change.
ARG BASE=rocm/dev-ubuntu-24.04:6.4.4-complete
FROM ${BASE}
ARG BASE
LABEL org.opencontainers.image.title="kbnode evaluation image, ROCm" \
      org.opencontainers.image.source="https://github.com/gpu-mode/kbnode" \
      org.opencontainers.image.base.name="${BASE}"
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# More of Ubuntu's packages, by name.
ARG EXTRA_PACKAGES=""
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    g++ git ninja-build python3 python3-dev python3-venv ${EXTRA_PACKAGES} \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*

# Where pip looks instead of its own index.
ARG PIP_INDEX_URL
# torch asks for its own Triton by exact version.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/rocm6.4
ARG TORCH_VERSION=2.9.1+rocm6.4
ARG NUMPY_VERSION=2.3.5
ARG SETUPTOOLS_VERSION=80.9.0
# More of pip's packages, each with its version: "name==1.2 other==3.4".
ARG EXTRA_PIP=""
ENV PATH=/opt/venv/bin:/opt/rocm/bin:${PATH}
RUN python3 -m venv /opt/venv \
 && pip install --no-cache-dir --index-url "${TORCH_INDEX_URL}" "torch==${TORCH_VERSION}" \
 && pip install --no-cache-dir "numpy==${NUMPY_VERSION}" "setuptools==${SETUPTOOLS_VERSION}" ${EXTRA_PIP}

# What evaluations call is there, or the build fails here. There is no USER: a job's
# checkout belongs to the slot's user, who is another one on every slot.
RUN for tool in g++ hipcc ninja python3 rocm-smi rocprofv3; do command -v "$tool"; done; \
    python3 -c 'import numpy, torch, triton; print(torch.__version__, torch.version.hip, triton.__version__)'
