# An evaluation image without GPU tools, built only from Debian packages: for problems
# in Python and C++, and to try a node. kbnode adds kbnode runner to every job's
# container.
#
# kbnode image build --build-arg NAME=VALUE sets an ARG. A base given by digest,
# debian@sha256:…, cannot change; the packages come from the mirror that the base
# names.
ARG BASE=debian:13.4-slim
FROM ${BASE}
ARG BASE
LABEL org.opencontainers.image.title="kbnode evaluation image, CPU" \
      org.opencontainers.image.source="https://github.com/gpu-mode/kbnode" \
      org.opencontainers.image.base.name="${BASE}"
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# More Debian packages, by name.
ARG EXTRA_PACKAGES=""
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    g++ python3 python3-numpy ${EXTRA_PACKAGES} \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*

# The build fails here if a tool that evaluations call is missing. There is no USER: a
# job's checkout belongs to the slot's user, which differs on every slot.
RUN for tool in g++ python3; do command -v "$tool"; done; \
    python3 -c 'import numpy; print(numpy.__version__)'
