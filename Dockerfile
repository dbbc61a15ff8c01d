# One image for both processes and every operator's command: `paylatch serve`, `paylatch watch`, `paylatch indexes`, ...
#
#   docker build -t paylatch .
#   docker run --rm paylatch --help

FROM python:3.13-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY models models
COPY webhook webhook
COPY watcher watcher
COPY scripts scripts
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
# A virtual environment of its own moves to the next stage in one piece, without pip and without the sources. Only ready
# wheels are taken: no compiler is needed here, and no package's own build code runs.
RUN python -m venv --without-pip /opt/paylatch \
    && pip --python /opt/paylatch/bin/python install --only-binary=:all: --constraint constraints.txt /wheels/paylatch-*.whl

FROM python:3.13-slim
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="PayLatch" \
      org.opencontainers.image.description="Payment webhooks that take effect exactly once, and notifications that are never lost." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# The number, not the name, is what Kubernetes' runAsNonRoot and the owners of mounted files go by.
RUN groupadd --gid 10001 paylatch \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin paylatch
COPY --from=build /opt/paylatch /opt/paylatch
ENV PATH=/opt/paylatch/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# `.env`, `paylatch.toml` and relative template folders are looked for here; nothing is ever written here.
WORKDIR /etc/paylatch
USER 10001:10001
# 8080 takes the provider's requests; 9080 (serve) and 9081 (watch) show health and metrics and stay private.
EXPOSE 8080 9080 9081
STOPSIGNAL SIGTERM
# For `serve`; `watch` has its private port elsewhere, so docker-compose.yml brings a check of its own. http.client, since
# urllib would go by way of a proxy that the environment names.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('PAYLATCH_HTTP__PRIVATE_PORT', '9080')), timeout=3); c.request('GET', '/livez'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["paylatch"]
CMD ["serve"]
