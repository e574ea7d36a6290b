"""Operations of networks: convolution, pools, normalisation, attention and recurrent networks."""

from optree.locks import modules_of

__getattr__ = modules_of(__name__)
