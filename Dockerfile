# webtext without GPU support, for Ray clusters and batch jobs: docker build -t webtext .
FROM python:3.11-slim

# wget and ray[default], below: for the probes and jobs of KubeRay.
RUN apt-get update && apt-get install --no-install-recommends -y wget && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home webtext
WORKDIR /opt/webtext
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY webtext webtext
COPY webtext_cli webtext_cli
COPY pipelines pipelines
COPY data data
RUN pip install --no-cache-dir --constraint constraints.txt '.[ray,object-stores,wikipedia]' 'ray[default]'
USER webtext
WORKDIR /home/webtext
ENTRYPOINT []
CMD ["webtext", "--help"]
