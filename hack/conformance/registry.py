#!/usr/bin/env python3
"""registry.py IMAGE...: serves images of the Engine as their own registry on 127.0.0.1:443, pull only.

One spec pulls an image of registry.k8s.io with policy Always. For as long as this runs, that name
leads here (a line in /etc/hosts), and the Engine trusts the certificate
(/etc/docker/certs.d/registry.k8s.io/ca.crt). Both are taken away when it ends (TERM or INT).
"""
import hashlib
import http.server
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile

NAME = "registry.k8s.io"
CERTIFICATES = f"/etc/docker/certs.d/{NAME}"
HOSTS = "/etc/hosts"
LINE = f"127.0.0.1 {NAME} # mirrorlet's conformance run\n"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"

blobs = {}  # digest -> path
manifests = {}  # (repository, tag or digest) -> body


def digest_of(path):
    with open(path, "rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def blob(path, media_type):
    digest = digest_of(path)
    blobs[digest] = path
    return {"mediaType": media_type, "size": os.path.getsize(path), "digest": digest}


def add(image, root):
    """Takes an image apart. Old and new Engines write manifest.json, each with paths of its own."""
    directory = tempfile.mkdtemp(dir=root)
    with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as save:
        subprocess.run(["tar", "-C", directory, "-x"], stdin=save.stdout, check=True)
    with open(f"{directory}/manifest.json", encoding="utf-8") as file:
        saved = json.load(file)[0]
    body = json.dumps({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blob(f"{directory}/{saved['Config']}", "application/vnd.docker.container.image.v1+json"),
        "layers": [blob(f"{directory}/{layer}", "application/vnd.docker.image.rootfs.diff.tar") for layer in saved["Layers"]],
    }).encode()
    repository, tag = re.fullmatch(r"[^/]+/(.+):([^:]+)", image).groups()
    manifests[repository, tag] = manifests[repository, "sha256:" + hashlib.sha256(body).hexdigest()] = body


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        asked = re.fullmatch(r"/v2/(?:(.+)/(manifests|blobs)/([^/?]+))?(?:\?.*)?", self.path)
        if asked and not asked[1]:
            return self.answer(200, "application/json", b"{}")
        if asked and asked[2] == "manifests" and (body := manifests.get((asked[1], asked[3]))):
            return self.answer(200, MANIFEST, body, "sha256:" + hashlib.sha256(body).hexdigest())
        if asked and asked[2] == "blobs" and asked[3] in blobs:
            with open(blobs[asked[3]], "rb") as file:
                return self.answer(200, "application/octet-stream", file.read(), asked[3])
        return self.answer(404, "application/json", b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}')

    do_HEAD = do_GET

    def answer(self, code, kind, body, digest=None):
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def forget():
    with open(HOSTS, encoding="utf-8") as file:
        hosts = file.read()
    if LINE in hosts:
        with open(HOSTS, "w", encoding="utf-8") as file:
            file.write(hosts.replace(LINE, ""))
    shutil.rmtree(CERTIFICATES, ignore_errors=True)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if os.path.exists(CERTIFICATES):
        sys.exit(f"{CERTIFICATES} is there already")
    root = tempfile.mkdtemp(prefix="registry.")
    # From here on everything that was made is taken away again.
    for end in (signal.SIGTERM, signal.SIGINT):
        signal.signal(end, lambda *_: sys.exit(0))
    try:
        for image in sys.argv[1:]:
            add(image, root)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", f"/CN={NAME}",
             "-keyout", f"{root}/key", "-out", f"{root}/crt",
             "-addext", f"subjectAltName=DNS:{NAME}", "-addext", "basicConstraints=critical,CA:TRUE"],
            check=True, stderr=subprocess.DEVNULL)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(f"{root}/crt", f"{root}/key")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 443), Handler)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        os.makedirs(CERTIFICATES)
        shutil.copy(f"{root}/crt", f"{CERTIFICATES}/ca.crt")
        with open(HOSTS, "a", encoding="utf-8") as file:
            file.write(LINE)
        server.serve_forever()
    finally:
        forget()
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
