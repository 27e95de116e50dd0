"""The models, one file each; `registry.MODELS` has them by their names in configurations."""

from hpcgnn.nn.models.appnp import APPNP
from hpcgnn.nn.models.gat import GAT, GATv2
from hpcgnn.nn.models.gatedgcn import GatedGCN
from hpcgnn.nn.models.gcn import GCN
from hpcgnn.nn.models.gcnii import GCNII
from hpcgnn.nn.models.gin import GIN
from hpcgnn.nn.models.gine import GINE
from hpcgnn.nn.models.hgt import HGT
from hpcgnn.nn.models.meshgraphnet import MeshGraphNet
from hpcgnn.nn.models.mixhop import MixHop
from hpcgnn.nn.models.nnconv import NNConv
from hpcgnn.nn.models.pna import PNA
from hpcgnn.nn.models.rgat import RGAT
from hpcgnn.nn.models.rgcn import RGCN
from hpcgnn.nn.models.sage import GraphSAGE
from hpcgnn.nn.models.sign import SIGN
from hpcgnn.nn.models.transformer import Transformer
