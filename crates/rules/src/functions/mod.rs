//! The functions of rules in one table. The argument check of the parser, the page `docs/reference/rule-functions.md`
//! and its examples, which are also tests, all come from this table.
//!
//! Each group of functions has its own file. A function receives values and returns a result or an error; the caller
//! adds the position.

pub(crate) mod arithmetic;
mod arrays;
mod bits;
mod codec;
mod convert;
pub(crate) mod dates;
mod format;
#[cfg(feature = "jq")]
mod jq;
mod maps;
mod message;
mod regexes;
mod sparkplug;
mod store;
mod strings;

use std::fmt;

use rule_values::{
    FunctionError, Map, RegexPattern, Value,
    json::{self, JsonForm},
};

use crate::context::EvaluationContext;
use crate::kinds::Kinds;

pub(crate) use convert::to_text;

/// A function: its arguments, result, description and example.
pub struct Function {
    pub name: &'static str,
    pub group: FunctionGroup,
    pub(crate) parameters: &'static [(&'static str, Kinds)],
    pub(crate) required: usize,
    /// More arguments of any type may follow.
    pub(crate) is_variadic: bool,
    pub returns: Kinds,
    /// The description, one sentence.
    pub about: &'static str,
    /// `expression = expression`. A test evaluates it for the message that `docs/reference/rule-functions.md`
    /// describes.
    pub example: &'static str,
    /// The second argument is a pattern, which is compiled with the rule if it is constant.
    pub(crate) takes_regex: bool,
    /// The first argument is a jq program, which is compiled with the rule if it is constant.
    #[cfg_attr(not(feature = "jq"), expect(dead_code, reason = "no function takes a program"))]
    pub(crate) takes_program: bool,
    /// The order of calls matters.
    pub(crate) has_state: bool,
    pub(crate) run: fn(&mut FunctionCall<'_, '_>) -> Result<Value, FunctionError>,
}

/// The sections of the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FunctionGroup {
    Message,
    Arithmetic,
    Type,
    Conversion,
    String,
    Map,
    Array,
    Bits,
    Codec,
    Date,
    Random,
    System,
    Sparkplug,
}

impl FunctionGroup {
    pub fn title(self) -> &'static str {
        match self {
            FunctionGroup::Message => "Message and null",
            FunctionGroup::Arithmetic => "Mathematics",
            FunctionGroup::Type => "Types",
            FunctionGroup::Conversion => "Conversion",
            FunctionGroup::String => "Strings",
            FunctionGroup::Map => "Maps",
            FunctionGroup::Array => "Arrays",
            FunctionGroup::Bits => "Bits and bytes",
            FunctionGroup::Codec => "Hashing, compression, encoding",
            FunctionGroup::Date => "Date and time",
            FunctionGroup::Random => "Random values",
            FunctionGroup::System => "Environment and store",
            FunctionGroup::Sparkplug => "Sparkplug B",
        }
    }
}

impl Function {
    pub(crate) fn takes(&self, arguments: usize) -> bool {
        arguments >= self.required && (self.is_variadic || arguments <= self.parameters.len())
    }

    pub(crate) fn parameter_kinds(&self, index: usize) -> Kinds {
        self.parameters.get(index).map_or(Kinds::ANY, |parameter| parameter.1)
    }

    /// `pad(string, length, [direction], [character])`
    pub fn signature(&self) -> String {
        let shown = self.parameters.iter().enumerate().map(|(index, (name, _))| {
            if index < self.required {
                (*name).to_owned()
            } else {
                format!("[{name}]")
            }
        });
        let rest = self.is_variadic.then(|| "…".to_owned());
        let parameters: Vec<String> = shown.chain(rest).collect();
        format!("{}({})", self.name, parameters.join(", "))
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.signature())
    }
}

/// A table of functions: `"name" (required: KINDS; optional: KINDS) flags -> KINDS, body, "about", "example";`
macro_rules! function_table {
    ($group:expr; $(
        $name:literal ($($parameter:ident: $kinds:ident),* $(; $($option:ident: $option_kinds:ident),*)?) $($flag:ident)*
        -> $returns:ident, $run:expr, $about:literal, $example:literal;
    )*) => {
        pub(super) const TABLE: &[$crate::functions::Function] = &[$(
            $crate::functions::Function {
                name: $name,
                group: $group,
                parameters: &[
                    $((stringify!($parameter), $crate::kinds::Kinds::$kinds),)*
                    $($((stringify!($option), $crate::kinds::Kinds::$option_kinds),)*)?
                ],
                required: <[&str]>::len(&[$(stringify!($parameter)),*]),
                is_variadic: $crate::functions::has_flag(&[$(stringify!($flag)),*], "variadic"),
                returns: $crate::kinds::Kinds::$returns,
                about: $about,
                example: $example,
                takes_regex: $crate::functions::has_flag(&[$(stringify!($flag)),*], "regex"),
                takes_program: $crate::functions::has_flag(&[$(stringify!($flag)),*], "program"),
                has_state: $crate::functions::has_flag(&[$(stringify!($flag)),*], "state"),
                run: $run,
            }
        ),*];
    };
}
use function_table;

const fn has_flag(flags: &[&str], flag: &str) -> bool {
    // A function has at most one flag, and all flags have different first letters.
    flags.len() == 1 && flags[0].as_bytes()[0] == flag.as_bytes()[0]
}

const TABLES: &[&[Function]] = &[
    message::TABLE,
    arithmetic::TABLE,
    convert::TYPE_TESTS,
    convert::TABLE,
    strings::TABLE,
    regexes::TABLE,
    format::TABLE,
    #[cfg(feature = "jq")]
    jq::TABLE,
    maps::TABLE,
    arrays::TABLE,
    bits::TABLE,
    codec::TABLE,
    dates::TABLE,
    store::RANDOM,
    store::TABLE,
    sparkplug::TABLE,
];

pub(crate) fn all() -> impl Iterator<Item = &'static Function> {
    TABLES.iter().copied().flatten()
}

/// Returns all functions in the order of the reference.
pub fn functions() -> impl Iterator<Item = &'static Function> {
    all()
}

/// Names are case-insensitive.
pub(crate) fn find(name: &str) -> Option<&'static Function> {
    all().find(|function| function.name.eq_ignore_ascii_case(name))
}

/// Functions of EMQX that are not supported, with the reason.
const ABSENT: &[(&str, &str)] = &[
    (
        "term_encode",
        "the external term format of Erlang is not used outside Erlang",
    ),
    (
        "term_decode",
        "the external term format of Erlang is not used outside Erlang",
    ),
    ("mongo_date", "there is no MongoDB sink"),
    ("schema_encode", "there is no schema registry"),
    ("schema_decode", "there is no schema registry"),
    ("schema_encode_and_tag", "there is no schema registry"),
    ("schema_check", "there is no schema registry"),
    ("avro_encode", "there is no schema registry"),
    ("avro_decode", "there is no schema registry"),
    ("ai_completion", "rules cannot call other services"),
    #[cfg(not(feature = "jq"))]
    ("jq", "this server was built without the feature `jq`"),
];

/// Returns names and reasons.
pub fn unsupported_functions() -> &'static [(&'static str, &'static str)] {
    ABSENT
}

pub(crate) fn unsupported_reason(name: &str) -> Option<&'static str> {
    ABSENT
        .iter()
        .find(|absent| absent.0.eq_ignore_ascii_case(name))
        .map(|absent| absent.1)
}

/// A constant argument that was compiled with the rule.
#[derive(Debug)]
pub(crate) enum CompiledArgument {
    Pattern(Box<RegexPattern>),
    #[cfg(feature = "jq")]
    Program(::jq::Program),
}

/// A function call. The number of arguments has already been checked.
pub(crate) struct FunctionCall<'a, 'r> {
    pub function: &'static Function,
    pub arguments: &'a [Value],
    /// The compiled pattern or program, if the argument is constant.
    pub constant: Option<&'a CompiledArgument>,
    pub run: &'a mut EvaluationContext<'r>,
}

impl<'a> FunctionCall<'a, '_> {
    pub fn value(&self, index: usize) -> &'a Value {
        self.arguments.get(index).unwrap_or(&Value::Undefined)
    }

    pub fn has(&self, index: usize) -> bool {
        index < self.arguments.len()
    }

    /// Returns the bytes of a text. `true` and `false` count as texts.
    pub fn text(&self, index: usize) -> Result<&'a [u8], FunctionError> {
        match self.value(index) {
            Value::Text(text) => Ok(text.as_bytes()),
            value @ Value::Bool(_) => Ok(value.word().unwrap_or_default().as_bytes()),
            _ => self.argument_error(index, "a string"),
        }
    }

    /// Returns the argument as UTF-8 text.
    pub fn str(&self, index: usize) -> Result<&'a str, FunctionError> {
        match std::str::from_utf8(self.text(index)?) {
            Ok(text) => Ok(text),
            Err(_) => Err(self.type_error(index, "bytes that are not UTF-8", "a string of characters")),
        }
    }

    /// Returns an option by its name, or `default`.
    pub fn option(&self, index: usize, default: &'static str) -> Result<&'a str, FunctionError> {
        if self.has(index) { self.str(index) } else { Ok(default) }
    }

    pub fn int(&self, index: usize) -> Result<i128, FunctionError> {
        match self.value(index) {
            Value::Int(int) => Ok(*int),
            _ => self.argument_error(index, "an integer"),
        }
    }

    /// Returns an integer from 0 that is a count.
    pub fn count(&self, index: usize) -> Result<usize, FunctionError> {
        let int = self.int(index)?;
        usize::try_from(int).map_err(|_| self.type_error(index, &int.to_string(), "0 or more"))
    }

    pub fn float(&self, index: usize) -> Result<f64, FunctionError> {
        match self.value(index) {
            Value::Int(int) => Ok(*int as f64),
            Value::Float(float) => Ok(*float),
            _ => self.argument_error(index, "a number"),
        }
    }

    pub fn array(&self, index: usize) -> Result<&'a [Value], FunctionError> {
        match self.value(index) {
            Value::Array(values) => Ok(values),
            _ => self.argument_error(index, "an array"),
        }
    }

    /// Returns a map, or parses the JSON text of a map.
    pub fn map(&mut self, index: usize) -> Result<Map, FunctionError> {
        match self.value(index) {
            Value::Map(map) => Ok(map.clone()),
            Value::Text(text) => match self.decode_json(text)? {
                Value::Map(map) => Ok(map),
                other => Err(self.type_error(index, &format!("the JSON of {}", other.type_name()), "a map")),
            },
            _ => self.argument_error(index, "a map"),
        }
    }

    pub fn decode_json(&mut self, text: &[u8]) -> Result<Value, FunctionError> {
        let decoded = json::decode_within(text, &self.run.limits.json, &mut self.run.budget)?;
        decoded.map_err(|error| FunctionError::from(format!("{}: the text is {error}", self.function.name)))
    }

    pub fn encode_json(&mut self, value: &Value, form: JsonForm) -> Result<Vec<u8>, FunctionError> {
        self.run.budget.charge_value(value)?;
        let json = json::encode(value, form);
        self.run.budget.read(json.len())?;
        Ok(json)
    }

    /// Returns a text as result and charges for its bytes.
    pub fn make(&mut self, bytes: impl Into<Vec<u8>>) -> Result<Value, FunctionError> {
        let bytes = bytes.into();
        self.run.budget.make(bytes.len())?;
        Ok(Value::Text(bytes.into()))
    }

    /// Returns an array of texts.
    pub fn texts<'t>(&mut self, texts: impl Iterator<Item = &'t [u8]>) -> Result<Value, FunctionError> {
        let mut values = Vec::new();
        for text in texts {
            self.run.budget.make(32 + text.len())?;
            values.push(Value::text(text));
        }
        Ok(Value::array(values))
    }

    pub fn argument_error<T>(&self, index: usize, expected: &str) -> Result<T, FunctionError> {
        Err(self.type_error(index, self.value(index).type_name(), expected))
    }

    pub fn type_error(&self, index: usize, found: &str, expected: &str) -> FunctionError {
        let name = self.function.name;
        FunctionError::from(format!(
            "argument {} of {name} is {found}, expected {expected}",
            index + 1
        ))
    }
}
