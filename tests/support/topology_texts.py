"""One small map in every supported format."""

from fractions import Fraction

from wirelag.network.formats import draft_of
from wirelag.network.topology import Topology

GRAPHML = """<?xml version="1.0"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key attr.name="label" for="node" id="d0"/><key attr.name="Distance" for="edge" id="d1"/>
<graph edgedefault="undirected">
<node id="0"><data key="d0">Bonn</data></node><node id="1"><data key="d0">K&#246;ln</data></node>
<node id="2"><data key="d0">Ulm</data></node>
<edge source="0" target="1"><data key="d1">25.5</data></edge>
<edge source="1" target="2"><data key="d1">300</data></edge>
</graph></graphml>"""
GML = """Creator "someone [with brackets]"
# a remark
graph [
  directed 0
  node [ id 0 label "Bonn" graphics [ x 1.5 ] ]
  node [ id 1 label "K&#246;ln" ]
  node [ id 2 label "Ulm" ]
  edge [ source 0 target 1 dist 25.5 ]
  edge [ source 1 target 2 dist 300 ]
]"""
SNDLIB = """?SNDlib native format; type: network; version: 1.0
# network tiny
NODES (
  Bonn ( 7.10 50.73 )
  Köln ( 6.96 50.94 )
  Ulm ( 9.99 48.40 )
)
LINKS (
  L1 ( Bonn Köln ) 0.00 0.00 25.50 0.00 ( 40.00 100.00 160.00 300.00 )
  L2 ( Köln Ulm ) 0.00 0.00 300.00 0.00 ( )
)
DEMANDS (
  D1 ( Bonn Ulm ) 1 5.00 UNLIMITED
)
"""
SNDLIB_XML = """<?xml version="1.0" encoding="ISO-8859-1"?>
<network xmlns="http://sndlib.zib.de/network" version="1.0"><networkStructure>
<nodes coordinatesType="geographical"><node id="Bonn"><coordinates><x>7.1</x><y>50.7</y></coordinates></node>
<node id="Köln"/><node id="Ulm"/></nodes>
<links><link id="L1"><source>Bonn</source><target>Köln</target><routingCost>25.5</routingCost></link>
<link id="L2"><source>Köln</source><target>Ulm</target><routingCost>300</routingCost></link></links>
</networkStructure><demands><demand id="D"><source>Bonn</source><target>Ulm</target></demand></demands></network>"""
REPETITA = """NODES 3
label x y
Bonn 7.1 50.7
Köln 6.9 50.9
Ulm 9.9 48.4

EDGES 4
label src dest weight bw delay
edge_0 0 1 25.5 9953280 1913
edge_1 1 0 25.5 9953280 1913
edge_2 1 2 300 9953280 4
edge_3 2 1 300 9953280 4
"""
TOPOHUB = """{"directed": false, "multigraph": false, "graph": {"name": "x"},
"nodes": [{"id": 5, "name": "Bonn", "pos": [7.1, 50.7]}, {"id": 7, "name": "Köln"}, {"id": 9, "name": "Ulm"}],
"edges": [{"dist": 25.50, "source": 5, "target": 7}, {"dist": 300.00, "source": 7, "target": 9}]}"""
PLAIN = """{"routers": ["Bonn", "Köln", "Ulm"],
"links": [{"source": "Bonn", "target": "Köln", "weight": 25.5},
{"source": "Köln", "target": "Ulm", "weight": "300"}]}"""
CSV = "# a map\nsource,target,weight\nBonn,Köln,25.5\n\nKöln,Ulm,300\n"
BARE_CSV = "Bonn; Köln; 25.5\nKöln; Ulm; 300\n"
SPACED_CSV = "Bonn, Köln, 25.5\nKöln, Ulm, 300\n"
TABS = "Bonn\tKöln\t25.5\nKöln\tUlm\t300\n"
MORE_COLUMNS = "rate\tcost\tto\tfrom\n1G\t25.5\tKöln\tBonn\n1G\t300\tUlm\tKöln\n"
ROCKETFUEL = "Bonn Köln 25.5\nKöln Bonn 25.5\nKöln Ulm 300\nUlm Köln 300\n"
INET = "3 2\n0\t1\t2\n1\t3\t4\n2\t5\t6\n0\t1\t51\n1\t2\t600\n"
HPCC = "3 1 2\n1\n0 1 100Gbps 1000ns 0.000000\n1 2 40Gbps 0.001ms 0\nsrc0 dst0 rate delay error_rate\n"
SAME = [
    GRAPHML,
    GML,
    SNDLIB,
    SNDLIB_XML,
    REPETITA,
    TOPOHUB,
    PLAIN,
    CSV,
    BARE_CSV,
    SPACED_CSV,
    TABS,
    MORE_COLUMNS,
    ROCKETFUEL,
]
SAMPLES = [*SAME, INET, HPCC]


def read(text: str) -> Topology:
    return draft_of("map", text).settle()


def weights(topology: Topology) -> dict[tuple[str, str], Fraction]:
    return {(link.source, link.target): link.weight * Fraction(topology.unit) for link in topology.links}
