"""Downloads: to the default folder alone, after a line that says what, how much and from where; by a local server."""

import functools
import http.server
import re
import socket
import tarfile
import threading
import urllib.error
import zipfile

import pytest

from privbench import data
from privbench.data import cifar10
from privbench.data.readers import download, files
from privbench.data.readers.download import torchvision_datasets
from privbench.errors import UserError
from privbench.system import places
from tests.builders import data_folders as folders


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Says nothing of what it is asked."""

    def log_message(self, *_):
        """Nothing."""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A user's cache folder of one test."""
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Server(http.server.ThreadingHTTPServer):
    """Says nothing of a client that left: its words would be taken for the program's."""

    def handle_error(self, request, client_address):
        pass


@pytest.fixture
def served(tmp_path, monkeypatch):
    """(a folder, the address at which a server on this machine has it)."""
    folder = tmp_path / "served"
    folder.mkdir()
    local = lambda host, port, *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]  # noqa: E731
    monkeypatch.setattr(socket, "getaddrinfo", local)
    monkeypatch.setenv("no_proxy", "*")
    with Server(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def published_cifar(served, tmp_path, monkeypatch):
    """A small CIFAR-10 in the published archive, at the address where torchvision looks for it: (pixels, address)."""
    folder, address = served
    pixels, _ = folders.cifar_torchvision(tmp_path / "made", monkeypatch)
    archive = folder / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "made/cifar-10-batches-py", "cifar-10-batches-py")
    torchvision_cifar = torchvision_datasets().CIFAR10
    monkeypatch.setattr(torchvision_cifar, "url", f"{address}/{archive.name}")
    monkeypatch.setattr(torchvision_cifar, "tgz_md5", files.digest(archive, "0" * 32))
    return pixels, archive


def test_an_absent_data_set_is_downloaded_once_to_the_default_folder(published_cifar, cache, capfd):
    pixels, archive = published_cifar
    (cache / "data/.download-killed/x").mkdir(parents=True)  # what a killed process left
    size = archive.stat().st_size
    loaded = data.load("cifar10", None)
    assert (loaded.domains["all"].train.images.numpy() == pixels[:100]).all()
    stderr = capfd.readouterr().err
    assert re.search(
        rf"downloading cifar10 \({size / 1e6:.1f} MB\) from http://127.0.0.1:\d+/{archive.name} to {cache}/data", stderr
    )
    assert not list((cache / "data").glob(".download-*"))
    archive.unlink()  # so that a second download would fail
    data.load("cifar10", None)
    data.fetch("cifar10")
    assert "downloading" not in capfd.readouterr().err
    assert all(line.startswith("present") for line in data.check("cifar10", None))


def test_nothing_is_downloaded_into_a_folder_of_the_users(published_cifar, cache, tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(
        UserError, match=r"cifar10 needs cifar-10-batches-bin/.* under .*mine .*downloads go to .*cache/data alone"
    ):
        data.load("cifar10", tmp_path / "mine")
    assert not list((tmp_path / "mine").iterdir())
    assert not cache.exists()


def test_the_archive_of_emnist_is_downloaded_and_unpacked_by_torchvision(served, cache, tmp_path, monkeypatch):
    folder, address = served
    folders.emnist_files(tmp_path / "made", "letters", gzipped=True)
    archive = folder / "gzip.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in (tmp_path / "made/EMNIST/raw").iterdir():
            packed.write(path, f"gzip/{path.name}")
    torchvision_emnist = torchvision_datasets().EMNIST
    monkeypatch.setattr(torchvision_emnist, "url", f"{address}/gzip.zip")
    monkeypatch.setattr(torchvision_emnist, "md5", files.digest(archive, "0" * 32))
    assert len(data.load("emnist-letters", None).domains["all"].train.labels) == 52
    assert (cache / "data/EMNIST/raw/emnist-letters-test-labels-idx1-ubyte").is_file()


def test_the_first_mirror_that_answers_tells_the_size(served):
    folder, address = served
    (folder / "images.gz").write_bytes(b"x" * 1234)
    assert download._reached([f"{address}/gone/images.gz", f"{address}/images.gz"]) == (f"{address}/images.gz", 1234)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        download._reached([f"{address}/gone/images.gz"])


def test_a_data_set_with_mirrors_names_the_first_file_and_all_sizes_together(served, cache, capfd, monkeypatch):
    folder, address = served
    torchvision_mnist = torchvision_datasets().MNIST
    resources = [(f"{name}.gz", "0" * 32) for name in "abc"]
    for name, _ in resources:
        (folder / name).write_bytes(b"x" * 500_000)
    monkeypatch.setattr(torchvision_mnist, "mirrors", [f"{address}/"])
    monkeypatch.setattr(torchvision_mnist, "resources", resources)
    with pytest.raises(UserError, match="mnist could not be downloaded"):  # by its checksum
        data.load("mnist", None)
    assert (
        f"downloading mnist (1.5 MB) from {address}/a.gz and its neighbours to {cache}/data" in capfd.readouterr().err
    )


def test_a_download_that_breaks_leaves_nothing_behind(cache, monkeypatch):
    def download(root):
        folders.write(root / "cifar-10-batches-bin/data_batch_1.bin", b"half")
        raise UserError("cifar10 could not be downloaded: the line went dead")

    monkeypatch.setattr(cifar10, "_download", download)
    with pytest.raises(UserError, match="the line went dead"):
        data.load("cifar10", None)
    assert not list(places.data().glob("cifar*"))


@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_folder_that_was_named_must_exist_and_is_not_made(by, cache, tmp_path, monkeypatch, command):
    wrong = tmp_path / "dta"
    words = ["data", "check", "cifar10"]
    if by == "environment":
        monkeypatch.setenv("PRIVBENCH_DATA", str(wrong))
    ran = command(*words, *(["--data-dir", wrong] if by == "option" else []))
    assert ran.status == 2
    assert "--data-dir" in ran.err
    assert f"'{wrong}' does not exist" in ran.err
    assert not wrong.exists()
    with pytest.raises(UserError, match="there is no folder"):
        data.load("cifar10", None if by == "environment" else wrong)
    assert not wrong.exists()
