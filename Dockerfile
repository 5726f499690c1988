# docker build -t heads . && docker run --rm heads
# Your own model: docker run --rm -v "$PWD:/data" heads /data/model.bin -p "Once"
FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev make
COPY . /heads
RUN make -C /heads

FROM debian:bookworm-slim
COPY --from=build /heads/run /usr/local/bin/heads
ENTRYPOINT ["heads"]
