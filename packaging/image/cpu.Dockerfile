# An evaluation image without a GPU's tools, of Debian's packages only: for problems
# in Python and C++, and to try a node. kbnode runner is in every job's container by
# itself.
#
# kbnode image build --build-arg NAME=VALUE sets what stands behind ARG. A base by
# its digest, debian@sha256:…, is one that cannot change; the packages are those of
# the mirror that the base names.
ARG BASE=debian:13.4-slim
FROM ${BASE}
ARG BASE
LABEL org.opencontainers.image.title="kbnode evaluation image, CPU" \
      org.opencontainers.image.source="https://github.com/gpu-mode/kbnode" \
      org.opencontainers.image.base.name="${BASE}"
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# More of Debian's packages, by name.
ARG EXTRA_PACKAGES=""
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    g++ python3 python3-numpy ${EXTRA_PACKAGES} \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*

# What evaluations call is there, or the build fails here. There is no USER: a job's
# checkout belongs to the slot's user, who is another one on every slot.
RUN for tool in g++ python3; do command -v "$tool"; done; \
    python3 -c 'import numpy; print(numpy.__version__)'
