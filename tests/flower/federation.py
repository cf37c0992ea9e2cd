"""Three clients with random images, which train the network of Flower's PyTorch tutorial and note what they send undefended."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

CLIENTS = 3
ROUNDS = 2
STEPS = 2
BATCH = 4


class Net(nn.Module):
    """The tutorial's, with batch normalisation in front, so that there are buffers, whole numbers among them."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(self.norm(x))))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


class FloatNet(Net):
    """Without buffers: the mods for differential privacy add noise to all arrays alike, and masks are of fractions."""

    def __init__(self):
        super().__init__()
        self.norm = nn.Identity()


def initial(build):
    torch.manual_seed(7)
    return build()


def examples(client):
    """Images of one client, of each client another number."""
    rng = torch.Generator().manual_seed(client)
    size = BATCH * (client + 1)
    return torch.rand(size, 3, 32, 32, generator=rng), torch.randint(10, (size,), generator=rng)


def train(model, client):
    images, labels = examples(client)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        rows = slice(BATCH * (step % (client + 1)), None)
        optimizer.zero_grad()
        F.cross_entropy(model(images[rows][:BATCH]), labels[rows][:BATCH]).backward()
        optimizer.step()


def note(folder, round_, node, model):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), folder / f"{round_}-{node}.safetensors")


def noted(folder):
    """(round, node) -> what the client had before any mod acted."""
    return {tuple(map(int, path.stem.split("-"))): load_file(path) for path in Path(folder).iterdir()}


def message_app(build, folder, mods):
    """A ClientApp of today's interface."""
    return with_training(ClientApp(mods=mods), build, folder)


def with_training(app, build, folder):
    """The same app, which trains and evaluates."""

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        model = build()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        client = context.node_config["partition-id"]
        train(model, client)
        note(folder, message.content["config"]["server-round"], context.node_id, model)
        numbers = MetricRecord({"num-examples": len(examples(client)[1]), "train-loss": float("nan")})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "numbers": numbers})
        return Message(content=content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(content=RecordDict({"numbers": MetricRecord({"num-examples": 1})}), reply_to=message)

    return app


def numpy_app(build, folder, mods):
    """A ClientApp of the older interface."""

    class Client(NumPyClient):
        def __init__(self, context):
            self.context = context

        def fit(self, parameters, config):
            model = build()
            names = model.state_dict().keys()
            state = {n: torch.from_numpy(t) for n, t in zip(names, parameters, strict=True)}
            model.load_state_dict(state)
            client = self.context.node_config["partition-id"]
            train(model, client)
            note(folder, config["round"], self.context.node_id, model)
            arrays = [t.numpy() for t in model.state_dict().values()]
            return arrays, len(examples(client)[1]), {"loss": 0.5, "who": "x"}

    return ClientApp(client_fn=lambda context: Client(context).to_client(), mods=mods)


def started(strategy, model):
    """A ServerApp that runs a strategy of today's interface; a client that fails makes it end, not wait."""
    app = ServerApp()

    @app.main()
    def main(grid, context):
        strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=ROUNDS, timeout=120)

    return app


def simulate(server, client):
    """Three clients on two cores."""
    backend = {
        "init_args": {"num_cpus": 2, "include_dashboard": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0},
    }
    run_simulation(server_app=server, client_app=client, num_supernodes=CLIENTS, backend_config=backend)
