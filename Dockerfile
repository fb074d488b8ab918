# The README's command in a container: docker build -t tailorvit . && docker run -v ./runs:/tailorvit/runs tailorvit
FROM python:3.13-slim
WORKDIR /tailorvit
COPY . .
RUN python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e .
ENTRYPOINT [".venv/bin/tailorvit"]
CMD ["run"]
