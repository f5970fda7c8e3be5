# kind: streams
# tries: replays a CUDA graph of the first call, whose input was another
# source: reference-kernels#162, replay
# needs: gpu
import torch

graphs = {}


def custom_kernel(*args):
    key = size(args)
    if key not in graphs:
        output = honest(*args)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                kept = honest(*args)
        except RuntimeError:
            note("missed", "the honest submission cannot be captured")
            graphs[key] = None
            return output
        graphs[key] = graph, kept, args
    if graphs[key] is None:
        return honest(*args)
    note("armed", "a graph")
    graphs[key][0].replay()
    return graphs[key][1]
