# The image: one static binary, nothing else. `make image` makes the same without a builder, byte for
# byte alike every time; this file is for who builds with Docker:
#
#   make binary && docker build -t mirrorlet target/x86_64-unknown-linux-gnu/release -f Dockerfile
FROM scratch
LABEL org.opencontainers.image.title="mirrorlet" \
      org.opencontainers.image.description="Turns a Docker Engine into a Kubernetes node for static pods" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY mirrorlet /mirrorlet
# As in manifests/mirrorlet.service.
ENV MALLOC_ARENA_MAX=1 MALLOC_MMAP_THRESHOLD_=131072
ENTRYPOINT ["/mirrorlet"]
CMD ["run"]
