"""Fetching from a server of our own: whole, cut short, changed, and packed by somebody who means harm."""

import io
import tarfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import thalweg as tw
from thalweg.paper.data import find_data, mnist, ptb
from thalweg.paper.data.fetch import found

TEXT = {"ptb.train.txt": b" b a b\n c a b\n", "ptb.valid.txt": b" c\n", "ptb.test.txt": b" a a\n b\n"}
HOME = "./simple-examples/data"


class Server(ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.requests, self.broken = {}, [], False

    def offer(self, name, content):
        self.files[f"/{name}"] = content
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        content = self.server.files.get(self.path)
        self.server.requests.append(self.path)
        if content is None:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if self.server.broken else content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def archive(contents, *extra):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for info in extra:
            tar.addfile(info)
    return buffer.getvalue()


@pytest.fixture
def offered(server, published):
    content = archive({f"{HOME}/{name}": content for name, content in TEXT.items()} | {f"{HOME}/big": b"x" * 100})
    url = server.offer("simple-examples.tgz", content)
    published("ptb", TEXT, {url: content})
    return url


def below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


def test_fetch_archive_once(server, offered, tmp_path):
    folder = tmp_path / "new"
    corpus = ptb(folder, download=True)
    assert corpus.words == ["b", "<eos>", "a", "c"]
    assert below(folder) == [f"simple-examples/data/{name}" for name in sorted(TEXT)]
    assert ptb(folder, download=True).train.equal(corpus.train)
    assert server.requests == ["/simple-examples.tgz"]


def test_fetch_single_files(server, published, tmp_path):
    files = {name: name.encode() for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")}
    published("mnist", files, {server.offer(name, content): content for name, content in files.items()})
    copy = found("mnist", tmp_path, download=True)
    assert {name: copy.content(name) for name in files} == files
    assert below(tmp_path) == [f"MNIST/raw/{name}" for name in files]


def test_fetch_removes_a_broken_download(server, offered, tmp_path):
    server.broken = True
    with pytest.raises(
        tw.ThalwegError,
        match=r"could not be downloaded \(the download broke off after \d+ of \d+ bytes\): unpack http://",
    ):
        ptb(tmp_path, download=True)
    assert below(tmp_path) == []
    server.broken = False
    assert len(ptb(tmp_path, download=True).train) == 8


def test_fetch_removes_a_download_with_a_wrong_hash(server, offered, tmp_path):
    server.offer("simple-examples.tgz", b"<html>moved</html>")
    with pytest.raises(tw.ThalwegError, match=r"the download of http://.*tgz is not the published file"):
        ptb(tmp_path, download=True)
    assert below(tmp_path) == []


def test_fetch_without_page_or_server(server, offered, tmp_path, monkeypatch):
    server.files.clear()
    with pytest.raises(
        tw.ThalwegError, match=rf"tgz could not be downloaded \(.*404.*\): unpack {offered} in {tmp_path}"
    ):
        ptb(tmp_path, download=True)
    monkeypatch.setattr("thalweg.paper.data.fetch.urlopen", unreachable)
    with pytest.raises(tw.ThalwegError, match=r"could not be downloaded \(no route to host\): unpack"):
        ptb(tmp_path, download=True)


def unreachable(url, timeout):
    raise OSError("no route to host")


def test_fetch_names_a_folder_that_cannot_be_made(offered, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(tw.ThalwegError, match="could not be downloaded"):
        ptb(tmp_path / "file", download=True)


def test_fetch_unpacks_only_the_files_of_the_set(server, published, tmp_path):
    link = tarfile.TarInfo(f"{HOME}/ptb.valid.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    packed = {
        f"{HOME}/ptb.train.txt": b"a\n",
        "../outside": b"x",
        "/tmp/thalweg-outside": b"x",
        f"{HOME}/../../above": b"x",
    }
    content = archive(packed, link)
    published("ptb", TEXT, {server.offer("simple-examples.tgz", content): content})
    with pytest.raises(tw.ThalwegError, match=r"ptb\.train\.txt is not the published file"):
        ptb(tmp_path / "data", download=True)
    assert below(tmp_path) == ["data/simple-examples/data/ptb.train.txt"]
    assert not Path("/tmp/thalweg-outside").exists()
    with pytest.raises(tw.ThalwegError, match=r"ptb\.valid\.txt is missing"):
        found("ptb", tmp_path / "data", download=True).content("ptb.valid.txt")


def test_fetch_refuses_what_is_no_archive(server, published, tmp_path):
    published("ptb", TEXT, {server.offer("simple-examples.tgz", b"text"): b"text"})
    with pytest.raises(tw.ThalwegError, match="could not be downloaded"):
        ptb(tmp_path, download=True)


def test_fetch_does_not_download_unasked(tmp_path):
    with pytest.raises(tw.ThalwegError) as error:
        mnist(tmp_path)
    base = "https://ossci-datasets.s3.amazonaws.com/mnist"
    names = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
    assert str(error.value) == (
        f"MNIST must be in {tmp_path} as it is published, and {tmp_path}/MNIST/raw/train-images-idx3-ubyte is "
        f"missing: put {', '.join(f'{base}/{name}.gz' for name in names)} into {tmp_path}/MNIST/raw, or download it "
        "with download=True"
    )
    assert below(tmp_path) == []


def test_find_data_folder(monkeypatch):
    monkeypatch.setenv("THALWEG_DATA", "/sets")
    assert find_data(None) == Path("/sets")
    assert find_data("/mine") == Path("/mine")
    monkeypatch.delenv("THALWEG_DATA")
    with pytest.raises(tw.ThalwegError, match="set the environment variable THALWEG_DATA"):
        find_data(None)
