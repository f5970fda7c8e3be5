# The evaluation image for NVIDIA GPUs: the CUDA compiler and Nsight Compute from the
# base image, and Python with torch and Triton. kbnode adds kbnode runner to every job's
# container.
#
# kbnode image build --build-arg NAME=VALUE sets an ARG. A base given by digest,
# nvidia/cuda@sha256:…, cannot change.
ARG BASE=nvidia/cuda:12.8.1-devel-ubuntu24.04
FROM ${BASE}
ARG BASE
LABEL org.opencontainers.image.title="kbnode evaluation image, CUDA" \
      org.opencontainers.image.source="https://github.com/gpu-mode/kbnode" \
      org.opencontainers.image.base.name="${BASE}"
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# More Ubuntu packages, by name.
ARG EXTRA_PACKAGES=""
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    g++ git ninja-build python3 python3-dev python3-venv ${EXTRA_PACKAGES} \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*

# The index that pip uses instead of its default.
ARG PIP_INDEX_URL
# torch requires an exact version of Triton.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cu128
ARG TORCH_VERSION=2.9.1+cu128
ARG NUMPY_VERSION=2.3.5
ARG SETUPTOOLS_VERSION=80.9.0
# More pip packages, each with its version: "name==1.2 other==3.4".
ARG EXTRA_PIP=""
ENV PATH=/opt/venv/bin:${PATH}
RUN python3 -m venv /opt/venv \
 && pip install --no-cache-dir --index-url "${TORCH_INDEX_URL}" "torch==${TORCH_VERSION}" \
 && pip install --no-cache-dir "numpy==${NUMPY_VERSION}" "setuptools==${SETUPTOOLS_VERSION}" ${EXTRA_PIP}

# The build fails here if a tool that evaluations call is missing. There is no USER: a
# job's checkout belongs to the slot's user, which differs on every slot.
RUN for tool in g++ ncu ninja nvcc python3; do command -v "$tool"; done; \
    python3 -c 'import numpy, torch, triton; print(torch.__version__, torch.version.cuda, triton.__version__)'
