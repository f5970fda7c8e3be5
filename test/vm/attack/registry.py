# A registry on 127.0.0.1:5000 with the images of what `docker save` wrote to the
# directory of the first argument: just enough to be pulled from.
import http.server
import json
import pathlib
import sys

root = pathlib.Path(sys.argv[1])
index = json.loads((root / "index.json").read_text())["manifests"][0]


class Registry(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        parts = self.path.split("/")
        digest, kind = parts[-1], "application/octet-stream"
        if self.path == "/v2/":
            data = b"{}"
        elif parts[1] == "v2" and parts[-2] == "manifests":
            digest, kind = index["digest"], index["mediaType"]
            data = self.blob(digest)
        elif parts[1] == "v2" and parts[-2] == "blobs":
            data = self.blob(digest)
        else:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET

    def blob(self, digest):
        return (root / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()


http.server.ThreadingHTTPServer(("127.0.0.1", 5000), Registry).serve_forever()
