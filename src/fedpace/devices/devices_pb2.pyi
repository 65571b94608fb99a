from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Asked(_message.Message):
    __slots__ = ("task", "welcome", "part", "job", "train", "evaluate")
    TASK_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    TRAIN_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    task: int
    welcome: Welcome
    part: Part
    job: Job
    train: Train
    evaluate: Evaluate
    def __init__(self, task: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., part: _Optional[_Union[Part, _Mapping]] = ..., job: _Optional[_Union[Job, _Mapping]] = ..., train: _Optional[_Union[Train, _Mapping]] = ..., evaluate: _Optional[_Union[Evaluate, _Mapping]] = ...) -> None: ...

class Said(_message.Message):
    __slots__ = ("task", "hello", "part", "ready", "update", "counts", "failed")
    TASK_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    task: int
    hello: Hello
    part: Part
    ready: Ready
    update: Update
    counts: Counts
    failed: Failed
    def __init__(self, task: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., part: _Optional[_Union[Part, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., update: _Optional[_Union[Update, _Mapping]] = ..., counts: _Optional[_Union[Counts, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("numbers",)
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    numbers: bytes
    def __init__(self, numbers: _Optional[bytes] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Job(_message.Message):
    __slots__ = ("json", "size")
    JSON_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    json: str
    size: int
    def __init__(self, json: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("samples",)
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    samples: int
    def __init__(self, samples: _Optional[int] = ...) -> None: ...

class Train(_message.Message):
    __slots__ = ("numbers", "round", "learning_rate", "local_steps")
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    numbers: bytes
    round: int
    learning_rate: float
    local_steps: int
    def __init__(self, numbers: _Optional[bytes] = ..., round: _Optional[int] = ..., learning_rate: _Optional[float] = ..., local_steps: _Optional[int] = ...) -> None: ...

class Update(_message.Message):
    __slots__ = ("numbers", "grad_norm", "loss", "computing_seconds", "local_steps")
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    COMPUTING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    numbers: bytes
    grad_norm: float
    loss: float
    computing_seconds: float
    local_steps: int
    def __init__(self, numbers: _Optional[bytes] = ..., grad_norm: _Optional[float] = ..., loss: _Optional[float] = ..., computing_seconds: _Optional[float] = ..., local_steps: _Optional[int] = ...) -> None: ...

class Evaluate(_message.Message):
    __slots__ = ("numbers",)
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    numbers: bytes
    def __init__(self, numbers: _Optional[bytes] = ...) -> None: ...

class Counts(_message.Message):
    __slots__ = ("loss", "correct", "held_out")
    LOSS_FIELD_NUMBER: _ClassVar[int]
    CORRECT_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_FIELD_NUMBER: _ClassVar[int]
    loss: float
    correct: int
    held_out: int
    def __init__(self, loss: _Optional[float] = ..., correct: _Optional[int] = ..., held_out: _Optional[int] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...
