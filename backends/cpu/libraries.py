"""The rows of the CPU's table of routines for convolutions, attention, recurrent nets and transforms."""

from __future__ import annotations

from operator import methodcaller

from backends.cpu.routines.attention import CompiledAttention
from backends.cpu.routines.convolution import Convolution
from backends.cpu.routines.fourier import by_scipy, transform
from backends.execution.routines import BEGINNING, Routine, always, takes_floats, views
from optree.networks.attention import Attention, AttentionGradient
from optree.networks.convolution import Conv, ConvInput, ConvTranspose, ConvWeights
from optree.networks.recurrent import Parts
from optree.ops.collectives import Begin
from optree.ops.fourier import Fft, InverseFft, InverseRealFft, RealFft

_WINDOWS_BY = methodcaller("windows_by")
_ATTENTION = Routine(CompiledAttention, always, label=_WINDOWS_BY)
_CONVOLUTION = Routine(Convolution, takes_floats, writes_out=True, label=_WINDOWS_BY)

ROUTINES: dict[type, Routine] = {Parts: Routine(views, always, computes=False), Begin: BEGINNING}
ROUTINES.update(dict.fromkeys((Conv, ConvInput, ConvTranspose, ConvWeights), _CONVOLUTION))
ROUTINES.update(dict.fromkeys((Attention, AttentionGradient), _ATTENTION))
ROUTINES.update(dict.fromkeys((Fft, InverseFft, RealFft, InverseRealFft), Routine(transform, by_scipy)))
