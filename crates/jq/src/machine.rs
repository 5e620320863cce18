//! The state of a running program: its remaining limits. Also the outputs of terms, and the reasons why a term ends.
//!
//! Steps, bytes and stack depth are counted. If one of these limits is exceeded, the program ends with an error that
//! `try` does not catch. Values nest at most `VALUE_NESTING_MAX` levels.

use std::sync::Arc;

use rule_values::{FunctionError, VALUE_NESTING_MAX, Value};

use super::ProgramLimits;

/// Maximum number of terms on the stack. Each needs about 1 KiB, and the stack has 2 MiB.
pub(super) const DEPTH_MAX: u32 = 800;

/// The reason why a term ends before its last output.
#[derive(Debug)]
pub(super) enum JqStop {
    /// An error, raised by `error` or by a failed operation, and its position if known.
    Error { value: Value, at: Option<u32> },
    /// `break`, to the label with this number.
    Break(u64),
    /// A limit was exceeded. `try` does not catch this.
    Limit(FunctionError),
    /// The receiver of the outputs has stopped. It keeps the reason.
    Receiver,
}

impl JqStop {
    pub fn error(message: impl Into<String>) -> JqStop {
        JqStop::Error {
            value: Value::from(message.into()),
            at: None,
        }
    }

    pub fn raised_at(self, here: u32) -> JqStop {
        match self {
            JqStop::Error { value, at: None } => JqStop::Error { value, at: Some(here) },
            other => other,
        }
    }
}

impl From<FunctionError> for JqStop {
    fn from(fault: FunctionError) -> JqStop {
        JqStop::Limit(fault)
    }
}

pub(super) type JqFlow = Result<(), JqStop>;

/// The path of a value in the input of `path(…)`.
#[derive(Clone, Debug)]
pub(super) enum ValuePath {
    /// Paths are not needed.
    Untracked,
    At(Arc<Vec<Value>>),
    /// The value has no path because it was computed.
    Computed,
}

#[derive(Clone, Debug)]
pub(super) struct JqOutput {
    pub value: Value,
    pub path: ValuePath,
}

impl JqOutput {
    pub fn plain(value: Value) -> JqOutput {
        JqOutput {
            value,
            path: ValuePath::Untracked,
        }
    }

    /// Returns an item for a value computed from this one.
    pub fn computed(&self, value: Value) -> JqOutput {
        let path = match self.path {
            ValuePath::Untracked => ValuePath::Untracked,
            ValuePath::At(_) | ValuePath::Computed => ValuePath::Computed,
        };
        JqOutput { value, path }
    }
}

/// Receives outputs.
pub(super) type OutputReceiver<'o> = dyn FnMut(&mut JqMachine, JqOutput) -> JqFlow + 'o;

/// The remaining limits, and state that exists longer than one term.
pub(super) struct JqMachine {
    pub allowance: ProgramLimits,
    depth: u32,
    pub labels: u64,
}

impl JqMachine {
    pub fn new(allowance: ProgramLimits) -> JqMachine {
        JqMachine {
            allowance,
            depth: 0,
            labels: 0,
        }
    }

    pub fn charge_steps(&mut self, steps: u64) -> JqFlow {
        Ok(self.allowance.budget.charge_steps(steps)?)
    }

    /// Charges for this many bytes before they are allocated.
    pub fn make(&mut self, bytes: usize) -> JqFlow {
        Ok(self.allowance.budget.make(bytes)?)
    }

    /// Charges for reading a text of this many bytes.
    pub fn read(&mut self, bytes: usize) -> JqFlow {
        Ok(self.allowance.budget.read(bytes)?)
    }

    /// Charges for comparing a value or writing it as text.
    pub fn charge_value(&mut self, value: &Value) -> JqFlow {
        Ok(self.allowance.budget.charge_value(value)?)
    }

    /// Fails if an array or object that contains this value would nest too deep.
    pub fn check_nesting(&mut self, value: &Value, around: usize) -> JqFlow {
        Ok(self.allowance.budget.check_nesting(value, around)?)
    }

    pub fn array(&mut self, elements: Vec<Value>) -> Result<Value, JqStop> {
        self.make(32 + 32 * elements.len())?;
        for element in &elements {
            self.check_nesting(element, 1)?;
        }
        Ok(Value::array(elements))
    }

    pub fn text(&mut self, bytes: impl Into<Vec<u8>>) -> Result<Value, JqStop> {
        let bytes = bytes.into();
        self.make(bytes.len())?;
        Ok(Value::Text(bytes.into()))
    }

    /// Calls `then` one level deeper.
    #[inline(always)]
    pub fn nested<T>(&mut self, then: impl FnOnce(&mut JqMachine) -> Result<T, JqStop>) -> Result<T, JqStop> {
        if self.depth >= DEPTH_MAX {
            let message = format!("the program nests deeper than {DEPTH_MAX} levels at run time");
            return Err(JqStop::Limit(FunctionError::limit(message)));
        }
        self.depth += 1;
        let result = then(self);
        self.depth -= 1;
        result
    }

    /// Returns the path of the value with this key.
    pub fn step_into(&mut self, path: &ValuePath, key: Value) -> Result<ValuePath, JqStop> {
        match path {
            ValuePath::Untracked => Ok(ValuePath::Untracked),
            ValuePath::Computed => Err(JqStop::error(
                "Invalid path expression: the accessed value is not part of the input",
            )),
            ValuePath::At(before) => {
                if before.len() >= VALUE_NESTING_MAX {
                    let message = format!("a path has more than {VALUE_NESTING_MAX} steps");
                    return Err(JqStop::Limit(FunctionError::limit(message)));
                }
                self.make(32 * (before.len() + 1))?;
                let mut keys = Vec::with_capacity(before.len() + 1);
                keys.extend_from_slice(before);
                keys.push(key);
                Ok(ValuePath::At(Arc::new(keys)))
            }
        }
    }

    /// Like [`Self::step_into`], but makes the key only if paths are needed.
    pub fn step_into_at(&mut self, path: &ValuePath, key: impl FnOnce() -> Value) -> Result<ValuePath, JqStop> {
        match path {
            ValuePath::Untracked => Ok(ValuePath::Untracked),
            path => self.step_into(path, key()),
        }
    }
}
