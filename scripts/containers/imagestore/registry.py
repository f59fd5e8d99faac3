"""Images in a registry: Docker Registry HTTP API v2, with tokens, redirects and a proxy's variables as urllib has them.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md, https://distribution.github.io/distribution/spec/auth/token/"""

import http.client
import time
import urllib.error
import urllib.parse
import urllib.request

from imagestore import blobs, credentials, manifest
from imagestore.errors import Refused
from imagestore.head import ACCEPT
from imagestore.reference import is_digest

TIMEOUT = 60  # seconds in which nothing comes
SLOWEST = 4096  # bytes in a second, after the first minute: a pull holds up the user's others


class Registry:
    def __init__(self, image):
        self.image = image
        self.base = f"{'http' if image.plain else 'https'}://{image.host}/v2/{image.name}"
        self.authorization = None
        # The cluster's own registry, and this machine, are behind no proxy.
        without = [urllib.request.ProxyHandler({})] if image.plain else []
        self.opener = urllib.request.build_opener(Redirects, *without)

    def digest(self):
        """Of the manifest, or index, that the tag names now."""
        if self.image.digest:
            return self.image.digest
        with self._open(f"manifests/{self.image.tag}", method="HEAD") as answer:
            found = answer.headers.get("Docker-Content-Digest", "")
        if is_digest(found):
            return found
        with self._open(f"manifests/{self.image.tag}") as answer:
            return blobs.digest_of(blobs.whole(answer))

    def load(self, digest):
        """The image to which this manifest or index leads, and the blobs of its layers, each still to be opened."""
        what = str(self.image)
        parsed = self._manifest(digest, what)
        if manifest.is_index(parsed):
            entry = manifest.for_this_machine(parsed, what)
            parsed = self._manifest(entry.digest, what)
        config, layers = manifest.blobs(parsed, what)
        with self._open(f"blobs/{config.digest}") as answer:
            content = blobs.small(answer, config.digest, f"the configuration of {what}", config.size)
        return manifest.image(config.digest, content, len(layers), what), layers

    def open(self, layer):
        return self._open(f"blobs/{layer.digest}")

    def _manifest(self, digest, what):
        with self._open(f"manifests/{digest}") as answer:
            content = blobs.small(answer, digest, f"the manifest of {what}")
        return manifest.parse_json(content, f"the manifest of {what}")

    def _open(self, path, method="GET"):
        try:
            return self._ask(path, method)
        except urllib.error.HTTPError as error:
            if error.code != 401 or not (challenge := error.headers.get("WWW-Authenticate")):
                raise self._refusal(error) from None
        self.authorization = self._answer(challenge)
        try:
            return self._ask(path, method)
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from None

    def _ask(self, path, method):
        request = urllib.request.Request(f"{self.base}/{path}", method=method)
        if path.startswith("manifests/"):
            request.add_header("Accept", ACCEPT)
        if self.authorization:
            # Not repeated to another host: layers often come from one that a redirect names.
            request.add_unredirected_header("Authorization", self.authorization)
        return self._reach(request)

    def _reach(self, request):
        try:
            return Answer(self.opener.open(request, timeout=TIMEOUT), self.image)
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError as error:
            raise Refused(f"{self.image}: {request.host} does not answer: {error.reason}") from None
        except (http.client.HTTPException, OSError, ValueError) as error:
            raise Refused(f"{self.image}: {request.host} does not answer: {error or type(error).__name__}") from None

    def _refusal(self, error):
        reason = {
            401: "the registry wants a login: put it into ~/.docker/config.json or ~/.config/enroot/.credentials",
            403: "the registry does not allow it",
            404: "the registry has no such image",
            429: "the registry asks to wait: too many requests",
        }.get(error.code, f"the registry answered {error.code} {error.reason}")
        return Refused(f"{self.image}: {reason}")

    def _answer(self, challenge):
        """The Authorization header that this challenge asks for."""
        scheme, _, rest = challenge.partition(" ")
        login = credentials.find(self.image.host, self.image.user)
        if scheme.lower() == "basic":
            if not login:
                raise Refused(f"{self.image}: no login for {self.image.host} in ~/.docker/config.json")
            return login
        fields = urllib.request.parse_keqv_list(
            [field for field in urllib.request.parse_http_list(rest) if "=" in field]
        )
        realm = fields.get("realm", "")
        if scheme.lower() != "bearer" or not realm.startswith(("https://", "http://")[: 1 + self.image.plain]):
            raise Refused(f"{self.image}: the registry asks for a login that is not known here: {challenge!r}")
        query = {"scope": f"repository:{self.image.name}:pull"}
        if "service" in fields:
            query["service"] = fields["service"]
        joint = "&" if "?" in realm else "?"
        request = urllib.request.Request(f"{realm}{joint}{urllib.parse.urlencode(query)}")
        if login:
            request.add_unredirected_header("Authorization", login)
        try:
            with self._reach(request) as answer:
                parsed = manifest.parse_json(blobs.whole(answer), "the token")
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from None
        token = parsed.get("token") or parsed.get("access_token")
        if not (isinstance(token, str) and token.isascii() and token.isprintable()):
            raise Refused(f"{self.image}: {request.host} gave no token")
        return f"Bearer {token}"


class Answer:
    """What the registry sends, with one kind of error."""

    def __init__(self, answer, image):
        self.answer, self.image, self.headers = answer, image, answer.headers
        self.begun, self.seen = time.monotonic(), 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.answer.close()

    def read(self, length):
        """As much as has come, at most this."""
        if time.monotonic() - self.begun > TIMEOUT + self.seen / SLOWEST:
            raise Refused(f"{self.image}: the registry sends less than {SLOWEST} bytes in a second")
        try:
            piece = self.answer.read1(length)
            self.seen += len(piece)
            return piece
        except (http.client.HTTPException, OSError) as error:
            raise Refused(
                f"{self.image}: the connection to the registry broke: {error or type(error).__name__}"
            ) from None


class Redirects(urllib.request.HTTPRedirectHandler):
    """Never from https to http, nor to a file."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        if not newurl.startswith(("https://", f"{req.type}://")):
            raise urllib.error.URLError(f"it leads to {newurl.split('?')[0]}")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request and request.host == req.host and req.unredirected_hdrs:
            request.unredirected_hdrs.update(req.unredirected_hdrs)
        return request
