//! The functions of rules: one table, from which come the parser's check of arguments, the reference in `docs/rules.md`
//! and its examples, which are tests.
//!
//! A group per file. A function gets its values and says what is wrong with them; where that stands, the caller knows.

pub(crate) mod arithmetic;
mod arrays;
mod bits;
mod codec;
mod convert;
pub(crate) mod dates;
mod format;
mod jq;
mod maps;
mod message;
mod regexes;
mod sparkplug;
mod store;
mod strings;

use std::fmt;

use regex::bytes::Regex;

use crate::error::Fault;
use crate::eval::Run;
use crate::jq::Program;
use crate::kinds::Kinds;
use crate::value::{Map, Value};

pub(crate) use convert::to_text;
pub(crate) use jq::ProgramCache;
pub(crate) use regexes::RegexCache;

/// One function: what it takes, what it gives, and an example that holds.
pub struct Function {
    pub name: &'static str,
    pub group: Group,
    pub(crate) parameters: &'static [(&'static str, Kinds)],
    pub(crate) required: usize,
    /// More arguments of any type may follow.
    pub(crate) is_variadic: bool,
    pub returns: Kinds,
    /// One sentence.
    pub about: &'static str,
    /// `expression = expression`; empty where the result is another one every time.
    pub example: &'static str,
    /// The second argument is a pattern, which is compiled with the rule if it is constant.
    pub(crate) takes_regex: bool,
    /// The same of the first argument, which is a jq program.
    pub(crate) takes_program: bool,
    /// The order of calls matters.
    pub(crate) has_state: bool,
    pub(crate) run: fn(&mut Call<'_, '_>) -> Result<Value, Fault>,
}

/// As the reference is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
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

impl Group {
    pub fn title(self) -> &'static str {
        match self {
            Group::Message => "Message and null",
            Group::Arithmetic => "Mathematics",
            Group::Type => "Types",
            Group::Conversion => "Conversion",
            Group::String => "Strings",
            Group::Map => "Maps",
            Group::Array => "Arrays",
            Group::Bits => "Bits and bytes",
            Group::Codec => "Hashing, compression, encoding",
            Group::Date => "Date and time",
            Group::Random => "Random values",
            Group::System => "Environment and store",
            Group::Sparkplug => "Sparkplug B",
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
    // There is at most one, and the first letters differ.
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

/// All functions, in the order of the reference.
pub fn functions() -> impl Iterator<Item = &'static Function> {
    all()
}

/// Case does not matter.
pub(crate) fn find(name: &str) -> Option<&'static Function> {
    all().find(|function| function.name.eq_ignore_ascii_case(name))
}

/// Functions of EMQX that do not exist here, and why.
const ABSENT: &[(&str, &str)] = &[
    (
        "term_encode",
        "Erlang's external term format has no readers outside of Erlang",
    ),
    (
        "term_decode",
        "Erlang's external term format has no writers outside of Erlang",
    ),
    ("mongo_date", "there is no MongoDB sink"),
    ("schema_encode", "there is no schema registry"),
    ("schema_decode", "there is no schema registry"),
    ("schema_encode_and_tag", "there is no schema registry"),
    ("schema_check", "there is no schema registry"),
    ("avro_encode", "there is no schema registry"),
    ("avro_decode", "there is no schema registry"),
    ("ai_completion", "rules talk to no other service"),
];

/// Names and reasons.
pub fn absent_functions() -> &'static [(&'static str, &'static str)] {
    ABSENT
}

pub(crate) fn absent(name: &str) -> Option<&'static str> {
    ABSENT
        .iter()
        .find(|absent| absent.0.eq_ignore_ascii_case(name))
        .map(|absent| absent.1)
}

/// A constant argument that was compiled with the rule.
#[derive(Debug)]
pub(crate) enum Compiled {
    Regex(Regex),
    Program(Program),
}

/// A function and its arguments, whose number has been checked.
pub(crate) struct Call<'a, 'r> {
    pub function: &'static Function,
    pub arguments: &'a [Value],
    /// Of a constant pattern or program.
    pub constant: Option<&'a Compiled>,
    pub run: &'a mut Run<'r>,
}

impl<'a> Call<'a, '_> {
    pub fn value(&self, index: usize) -> &'a Value {
        self.arguments.get(index).unwrap_or(&Value::Undefined)
    }

    pub fn has(&self, index: usize) -> bool {
        index < self.arguments.len()
    }

    /// Bytes; `true` and `false` are words.
    pub fn text(&self, index: usize) -> Result<&'a [u8], Fault> {
        match self.value(index) {
            Value::Text(text) => Ok(text.as_bytes()),
            value @ Value::Bool(_) => Ok(value.word().unwrap_or_default().as_bytes()),
            _ => self.wrong(index, "a string"),
        }
    }

    /// Characters.
    pub fn str(&self, index: usize) -> Result<&'a str, Fault> {
        match std::str::from_utf8(self.text(index)?) {
            Ok(text) => Ok(text),
            Err(_) => Err(self.fault(index, "bytes that are not UTF-8", "a string of characters")),
        }
    }

    /// An option by its name, or `default`.
    pub fn option(&self, index: usize, default: &'static str) -> Result<&'a str, Fault> {
        if self.has(index) { self.str(index) } else { Ok(default) }
    }

    pub fn int(&self, index: usize) -> Result<i128, Fault> {
        match self.value(index) {
            Value::Int(int) => Ok(*int),
            _ => self.wrong(index, "an integer"),
        }
    }

    /// An integer from 0 that says how many.
    pub fn count(&self, index: usize) -> Result<usize, Fault> {
        let int = self.int(index)?;
        usize::try_from(int).map_err(|_| self.fault(index, &int.to_string(), "0 or more"))
    }

    pub fn float(&self, index: usize) -> Result<f64, Fault> {
        match self.value(index) {
            Value::Int(int) => Ok(*int as f64),
            Value::Float(float) => Ok(*float),
            _ => self.wrong(index, "a number"),
        }
    }

    pub fn array(&self, index: usize) -> Result<&'a [Value], Fault> {
        match self.value(index) {
            Value::Array(values) => Ok(values),
            _ => self.wrong(index, "an array"),
        }
    }

    /// A map, or the JSON of one.
    pub fn map(&mut self, index: usize) -> Result<Map, Fault> {
        match self.value(index) {
            Value::Map(map) => Ok(map.clone()),
            Value::Text(text) => match self.decode_json(text)? {
                Value::Map(map) => Ok(map),
                other => Err(self.fault(index, &format!("the JSON of {}", other.type_name()), "a map")),
            },
            _ => self.wrong(index, "a map"),
        }
    }

    pub fn decode_json(&mut self, text: &[u8]) -> Result<Value, Fault> {
        self.run.budget.make(text.len() * 4)?;
        let decoded = crate::json::decode(text, &self.run.rule.limits.json);
        decoded.map_err(|error| Fault::from(format!("{}: the text is {error}", self.function.name)))
    }

    /// A text as result, of which the bytes are counted.
    pub fn make(&mut self, bytes: impl Into<Vec<u8>>) -> Result<Value, Fault> {
        let bytes = bytes.into();
        self.run.budget.make(bytes.len())?;
        Ok(Value::Text(bytes.into()))
    }

    /// An array of texts.
    pub fn texts<'t>(&mut self, texts: impl Iterator<Item = &'t [u8]>) -> Result<Value, Fault> {
        let mut values = Vec::new();
        for text in texts {
            self.run.budget.make(32 + text.len())?;
            values.push(Value::text(text));
        }
        Ok(Value::array(values))
    }

    pub fn wrong<T>(&self, index: usize, expected: &str) -> Result<T, Fault> {
        Err(self.fault(index, self.value(index).type_name(), expected))
    }

    pub fn fault(&self, index: usize, found: &str, expected: &str) -> Fault {
        let name = self.function.name;
        Fault::from(format!(
            "argument {} of {name} is {found}, expected {expected}",
            index + 1
        ))
    }
}
