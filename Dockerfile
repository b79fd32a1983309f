# Two images, each with the four programs, their data and pages in /opt/fewbit:
#   docker build --target cpu  -t fewbit:cpu  .
#   docker build --target cuda -t fewbit:cuda .     then: docker run --gpus all …
# The stages that build have the source with `scripts/quickstart` and `scripts/test` in it:
#   docker build --target build-cpu -t fewbit:build . && docker run --rm fewbit:build scripts/quickstart
# scripts/package_check executes the RUN lines of the CPU's stages where no engine for containers is.

FROM debian:12 AS build-cpu
COPY . /src/fewbit
WORKDIR /src/fewbit
RUN scripts/setup
RUN scripts/build --no-cuda
RUN apt-get install -y --no-install-recommends dpkg-dev file && cd build && cpack -G DEB

FROM debian:12-slim AS cpu
COPY --from=build-cpu /src/fewbit/build/packages /packages
RUN apt-get update && apt-get install -y --no-install-recommends /packages/fewbit_*.deb /packages/fewbit-http_*.deb && rm -rf /packages /var/lib/apt/lists/*
ENV PATH=/opt/fewbit/bin:$PATH
WORKDIR /work
CMD ["quantize", "--help"]

FROM nvidia/cuda:12.6.3-devel-ubuntu24.04 AS build-cuda
COPY . /src/fewbit
WORKDIR /src/fewbit
RUN scripts/setup
RUN scripts/build --cuda
RUN cmake --install build --prefix /opt/fewbit

FROM nvidia/cuda:12.6.3-runtime-ubuntu24.04 AS cuda
RUN apt-get update && apt-get install -y --no-install-recommends libopenblas0-pthread libcpp-httplib-dev && rm -rf /var/lib/apt/lists/*
COPY --from=build-cuda /opt/fewbit /opt/fewbit
ENV PATH=/opt/fewbit/bin:$PATH
WORKDIR /work
CMD ["quantize", "--help"]
