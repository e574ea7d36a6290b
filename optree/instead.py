"""Names that users of torch, JAX, NumPy and Theano reach for, and what to write instead: one table, for all errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from optree.arrays import is_array
from optree.errors import Labelled

#: Attributes of a NumPy array in memory, and methods that give what is no operand.
ON_THE_HOST = """
byteswap choose compress ctypes data dump dumps flags getfield itemsize nbytes nonzero strides tobytes tofile
""".split()

#: Methods of torch's tensors that are functions of the backend.
FUNCTIONS = """
abs ceil cos cosh diff erf exp expm1 flip floor isfinite isinf isnan log log10 log1p log2 logsumexp matmul
maximum minimum norm relu roll sign sin sinh softmax sqrt square tan tanh tile topk tril triu unique where
""".split()

#: By holder and name, what to write instead. ``x`` is an operand, ``be`` a backend, ``opt`` an optimizer.
_TEXTS = {
    "operand": """
_set_dtype: x.astype(dtype) is a tree
_set_shape: x.reshape(shape) is a view of a tensor, and a tree of a tree
add_: x += y writes a tensor
backward: optree.grad(loss, weights) has the gradients, and optree.function([], loss, updates=opt.updates(loss)) a step
base: only a tensor is a view of another
block_until_ready: be.synchronize() waits for all work
bmm: be.matmul(x, y) is a tree
clamp: x.clip(low, high) is a tree
clone: x.copy() copies it
contiguous: x.copy() is in C order
copy_: x[...] = y writes a tensor
cpu: x.get() is its value as a NumPy array
cuda: gen_backend('gpu') has tensors on the device, and be.array(x.get()) copies one there
detach: x.astensor() has a tree's value, and optree.grad(loss, w, consider_constant=[x]) no derivative through it
device: x.backend is where it is
dim: x.ndim is the number of axes
div_: x /= y writes a tensor
double: x.astype('float64') casts it
eval: x.get() runs it
expand: be.broadcast_to(x, shape) is a tree
fill: x[...] = value writes a tensor, and np.full_like(x, value) is a tree
fill_: x.fill(value) writes a tensor
flat: x.ravel() has its elements in C order
float: x.astype('float32') casts it
get_value: x.get() is its value as a NumPy array
grad: optree.grad(loss, x) is the gradient of a loss, a tree
half: x.astype('float16') casts it
int: x.astype('int32') casts it
long: x.astype('int64') casts it
masked_fill: be.where(mask, value, x) is a tree
mm: be.matmul(x, y) is a tree
mul_: x *= y writes a tensor
numel: x.size is the number of elements
numpy: x.get() is its value as a NumPy array
partition: np.partition(x, kth) is a tree, and x[...] = np.partition(x, kth) writes a tensor
permute: x.transpose(axes) is its axes in another order
pow: x**y is a tree
put: np.put(x, indices, values) writes a tensor, and be.scatter(x, indices, values) is a tree
requires_grad: optree.grad(loss, x) is the gradient by any tensor
requires_grad_: optree.grad(loss, x) is the gradient by any tensor
resize: np.resize(x, shape) is a tree
set_value: x.set(values) writes a tensor
setfield: x[...] = ... writes a tensor or a part of one
setflags: x is always writeable if it is a tensor
sigmoid: be.sig(x) is a tree
sort: np.sort(x) is a tree, and x[...] = np.sort(x) writes a tensor
sub_: x -= y writes a tensor
to: x.astype(dtype) casts it, and be.array(x.get()) copies it to another backend
tostring: x.get().tobytes() has the bytes of its value
to_device: be.array(x.get()) copies it to another backend
unsqueeze: be.expand_dims(x, axis) is a tree
values: x.get() is its value as a NumPy array
zero_: x.fill(0) writes a tensor
""",
    "backend": """
addmm: be.dot(x, y) + z
as_tensor: be.array(values)
asarray: be.array(values)
avg_pool2d: be.avg_pool(x, window)
block_until_ready: be.synchronize()
bmm: be.matmul(x, y)
cat: be.concatenate([x, y], axis)
chunk: be.array_split(x, count, axis)
clamp: be.clip(x, low, high)
concat: be.concatenate([x, y], axis)
conv1d: be.conv(x, weights), of one to three dimensions
conv2d: be.conv(x, weights), of one to three dimensions
conv3d: be.conv(x, weights), of one to three dimensions
detach: optree.grad(loss, w, consider_constant=[x])
device_put: be.array(values)
dropout: x * be.dropout_mask(x, keep), or train.Phase(be, training).dropout(x, keep)
erfc: 1 - be.erf(x)
flatten: be.reshape(x, (len(x), -1))
float16: dtype='float16'
float32: dtype='float32'
float64: dtype='float64'
fori_loop: be.scan(step, initial, length=n)
from_numpy: be.array(values) copies, and be.adopt(values) shares
grad: optree.grad(loss, weights)
hardshrink: be.where(be.abs(x) > limit, x, 0)
hessian: optree.hessian(loss, x)
index_select: be.take(x, indices, axis)
int32: dtype='int32'
int64: dtype='int64'
jacobian: optree.jacobian(y, x)
lax: be.scan(step, initial, sequences)
linear: be.dot(x, w) + b
load: optree.train.load(path, ...)
logit: be.log(x / (1 - x))
manual_seed: be.gen_rng(seed)
masked_fill: be.where(mask, value, x)
max_pool2d: be.max_pool(x, window)
mm: be.matmul(x, y)
mse_loss: optree.train.losses.mean_squared_error(values, targets)
mv: be.matvec(x, y)
nn: be.relu(x) and others are functions, and optree.train has losses and initial weights
no_grad: optree.grad(loss, w) alone differentiates, and nothing is recorded
numel: x.size
optim: optree.train has the optimizers
permute: be.transpose(x, axes)
permute_dims: be.transpose(x, axes)
prelu: be.where(x > 0, x, slope * x)
random: be.rand(shape) and be.standard_normal(shape)
rsqrt: 1 / be.sqrt(x)
save: optree.train.save(path, ...)
scaled_dot_product_attention: be.attention(query, key, value)
seed: be.gen_rng(seed)
softshrink: be.sgn(x) * be.relu(be.abs(x) - limit)
stop_gradient: optree.grad(loss, w, consider_constant=[x])
tanhshrink: x - be.tanh(x)
tensor: be.array(values)
threshold: be.where(x > limit, x, value)
unsqueeze: be.expand_dims(x, axis)
value_and_grad: optree.value_and_grad(loss, weights)
vmap: optree.vmap(function)
""",
    "optimizer": """
add_param_group: Adam([{"weights": [w], "rate": 0.1}, ...]) has groups from the start
apply: optree.function([], loss, updates=opt.updates(loss)) is a step
apply_gradients: opt.updates(loss, gradients) are the updates of a step
init: opt.state has the state from the start
load_state_dict: optree.train.load(path, ...) reads it
lr: opt.rate is the rate of the next step
minimize: optree.function([], loss, updates=opt.updates(loss)) is a step
param_groups: opt.weights and opt.rate
parameters: opt.weights
state_dict: opt.state, or optree.train.save(path, ...) writes it
update: opt.updates(loss) are the updates of a step
zero_grad: gradients are trees, which each step computes anew, and nothing is to be reset
""",
    "option": """
alpha: decay=
amsgrad: there is no such variant
b1: beta1=
b2: beta2=
betas: beta1= and beta2=
capturable: a step is captured on a GPU without it
dampening: there is no such variant
eps: epsilon=
foreach: train.packed(weights) lets one kernel update all
fused: train.packed(weights) lets one kernel update all
grad_clip: clip_global_norm=
learning_rate: rate=
lr: rate=
max_grad_norm: clip_global_norm=
maximize: opt.updates(-loss)
params: weights=
rho: decay=
""",
    "parameter": """
dim: axis=
dims: axis=
input: x, the first argument
keep_dims: keepdims=
keepdim: keepdims=
tensors: a list of operands, the first argument
""",
    "optree": """
array: be.array(values), of a backend that gen_backend makes
backward: optree.grad(loss, weights)
device_put: be.array(values), of a backend that gen_backend makes
gen_backend: from backends import gen_backend
lax: be.scan(step, initial, sequences), of a backend that gen_backend makes
nn: be.relu(x) and others are functions of a backend, and optree.train has losses and initial weights
no_grad: optree.grad(loss, w) alone differentiates, and nothing is recorded
optim: optree.train has the optimizers
pmap: optree.distributed runs a loop in many processes
save: optree.train.save(path, ...)
load: optree.train.load(path, ...)
shared: be.array(values), of a backend that gen_backend makes
stop_gradient: optree.grad(loss, w, consider_constant=[x])
tensor: be.array(values), of a backend that gen_backend makes
zeros: be.zeros(shape), of a backend that gen_backend makes
""",
    "train": """
CosineAnnealingLR: train.schedules.cosine(rate, steps)
CrossEntropyLoss: train.losses.cross_entropy(scores, labels)
DataLoader: train.Batches(samples, labels, size=50)
LambdaLR: a rate may be any function of the step
MSELoss: train.losses.mean_squared_error(values, targets)
OneCycleLR: train.schedules.one_cycle(peak, steps)
StepLR: train.schedules.step(rate, every)
clip_grad_norm_: clip_global_norm= of an optimizer
cross_entropy: train.losses.cross_entropy(scores, labels)
init: train.initializers
load_state_dict: train.load_weights(path, weights)
lr_scheduler: train.schedules
optim: train.Adam(weights, rate) and others
""",
    "losses": """
BCELoss: losses.binary_cross_entropy(scores, labels), of scores before the sigmoid
BCEWithLogitsLoss: losses.binary_cross_entropy(scores, labels)
CTCLoss: losses.ctc(scores, labels, input_lengths, label_lengths)
CrossEntropyLoss: losses.cross_entropy(scores, labels)
HuberLoss: losses.huber(values, targets)
KLDivLoss: losses.kl_divergence(scores, probabilities)
L1Loss: losses.mean_absolute_error(values, targets)
MSELoss: losses.mean_squared_error(values, targets)
NLLLoss: losses.cross_entropy(scores, labels)
SmoothL1Loss: losses.huber(values, targets)
binary_cross_entropy_with_logits: losses.binary_cross_entropy(scores, labels)
l1_loss: losses.mean_absolute_error(values, targets)
mse: losses.mean_squared_error(values, targets)
mse_loss: losses.mean_squared_error(values, targets)
nll_loss: losses.cross_entropy(scores, labels)
""",
}

#: The same, read.
INSTEAD: dict[str, dict[str, str]] = {
    holder: dict(line.split(": ", 1) for line in text.strip().splitlines()) for holder, text in _TEXTS.items()
}
INSTEAD["operand"] |= {name: f"x.get().{name} is that of its value as a NumPy array" for name in ON_THE_HOST}
INSTEAD["operand"] |= {name: f"be.{name}(x) is a tree" for name in FUNCTIONS if name not in INSTEAD["operand"]}


def instead(holder: str, name: str) -> str:
    """The end of an error for a name that its holder does not have: what to write instead, if the table has it."""
    remedy = INSTEAD[holder].get(name)
    return "" if remedy is None else f"; instead: {remedy}"


def instead_of_parameter(given: Iterable[str]) -> str:
    """The same for the names of a call's arguments: of the first that the table has."""
    return next((instead("parameter", name) for name in given if name in INSTEAD["parameter"]), "")


class RefusedAttribute:
    """An attribute that raises AttributeError with the way out."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, operand: Any, owner: Any = None) -> NoReturn:
        kind = (type(operand) if owner is None else owner).__name__
        raise AttributeError(f"{kind!r} object has no attribute {self._name!r}: {INSTEAD['operand'][self._name]}")


def refuse_attributes(cls: object) -> None:
    """Add the attributes of operands in the table that a class does not have."""
    for name in INSTEAD["operand"]:
        if name not in dir(cls):
            setattr(cls, name, RefusedAttribute(name))


def remedy_for(value: object) -> str:
    """How a value is made an operand, or why it has come as one."""
    if isinstance(value, list | tuple):
        if any(isinstance(x, Labelled) for x in value):
            return "; be.stack(...) is one operand of them, and another library, as Matplotlib, takes x.get()"
        return "; np.asarray makes an operand of it"
    if value is None:
        return (
            "; be.count(x, axis) is the size of an axis where x.shape has None, a function without a return statement "
            "gives None, and Matplotlib's bar takes x.get()"
        )
    if isinstance(value, dict) and "op" in value:
        return "; a tree's [0] is its op_dict, and tree.at[0] the first element of its value"
    return "; a GPU backend's be.adopt makes a tensor of it" if is_array(value) else ""
