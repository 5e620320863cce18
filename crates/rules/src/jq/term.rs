//! A compiled jq program: names are resolved to numbers, and how deep it nests is known.

use super::machine::{Machine, Stop};
use crate::value::Value;

/// A term with its place in the text of the program.
#[derive(Debug)]
pub(super) struct Term {
    pub form: Form,
    /// Where it begins, in bytes.
    pub at: u32,
    /// Of the tree below it: what walks it uses the stack.
    pub height: u16,
}

#[derive(Debug)]
pub(super) enum Form {
    Identity,
    /// `..`
    Descend,
    Literal(Value),
    Text(Option<TextFormat>, Vec<Part>),
    Format(TextFormat),
    /// Of what, and with which key.
    Index(Box<Term>, Box<Term>),
    Slice(Box<Term>, Option<Box<Term>>, Option<Box<Term>>),
    Iterate(Box<Term>),
    Try(Box<Term>, Option<Box<Term>>),
    Array(Option<Box<Term>>),
    Object(Vec<(Term, Term)>),
    Negate(Box<Term>),
    Pipe(Box<Term>, Box<Term>),
    Comma(Box<Term>, Box<Term>),
    Bind(Box<Term>, Pattern, Box<Term>),
    Binary(Operator, Box<Term>, Box<Term>),
    Both(Box<Term>, Box<Term>),
    Either(Box<Term>, Box<Term>),
    Alternative(Box<Term>, Box<Term>),
    Assign(Box<Term>, Box<Term>),
    Update(Box<Term>, Box<Term>),
    UpdateBy(Updating, Box<Term>, Box<Term>),
    If(Box<Term>, Box<Term>, Option<Box<Term>>),
    Reduce(Box<Fold>),
    Foreach(Box<Fold>, Option<Box<Term>>),
    Def(Box<Def>, Box<Term>),
    Variable(u32),
    Call(Target, Vec<Term>),
    Label(u32, Box<Term>),
    Break(u32),
}

#[derive(Debug)]
pub(super) enum Part {
    Text(String),
    Term(Term),
}

/// Of `reduce` and `foreach`.
#[derive(Debug)]
pub(super) struct Fold {
    pub source: Term,
    pub pattern: Pattern,
    pub init: Term,
    pub update: Term,
}

#[derive(Debug)]
pub(super) enum Pattern {
    Variable(u32),
    Array(Vec<Pattern>),
    Object(Vec<(Key, Option<Pattern>)>),
}

/// Of an entry in a pattern: what it is called, and the variable that gets it, if there is one.
#[derive(Debug)]
pub(super) struct Key {
    pub name: Term,
    pub variable: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Def {
    pub id: u32,
    pub params: Vec<Param>,
    pub body: Term,
}

/// A parameter is a filter; `$name` is a value, too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Param {
    pub id: u32,
    pub variable: Option<u32>,
}

/// What a call calls.
#[derive(Debug)]
pub(super) enum Target {
    Def(u32),
    Param(u32),
    /// Number in the prelude.
    Prelude(usize),
    Native(Native),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// `+=` and its kin.
#[derive(Clone, Copy, Debug)]
pub(super) enum Updating {
    By(Operator),
    Alternative,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextFormat {
    Text,
    Json,
    Html,
    Uri,
    Csv,
    Tsv,
    Sh,
    Base64,
    Base64Decode,
}

impl TextFormat {
    pub fn from_name(name: &str) -> Option<TextFormat> {
        Some(match name {
            "text" => TextFormat::Text,
            "json" => TextFormat::Json,
            "html" => TextFormat::Html,
            "uri" => TextFormat::Uri,
            "csv" => TextFormat::Csv,
            "tsv" => TextFormat::Tsv,
            "sh" => TextFormat::Sh,
            "base64" => TextFormat::Base64,
            "base64d" => TextFormat::Base64Decode,
            _ => return None,
        })
    }
}

pub(super) type ValueFunction = fn(&mut Machine, Value, &[Value]) -> Result<Value, Stop>;

#[derive(Clone, Copy, Debug)]
pub(super) enum Native {
    /// Of the input and the values of the arguments.
    Values(ValueFunction),
    Number(fn(f64) -> f64),
    Numbers(fn(f64, f64) -> f64),
    Special(Special),
}

/// What gets its arguments as filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    Empty,
    Path,
    GetPath,
    Range,
    Limit,
    Until,
    While,
    Repeat,
    Recurse,
}

impl Form {
    /// Of what is below it.
    pub(super) fn height(&self) -> u16 {
        let of = |terms: &[&Term]| terms.iter().map(|term| term.height).max().unwrap_or(0);
        let maybe = |term: &Option<Box<Term>>| term.as_ref().map_or(0, |term| term.height);
        match self {
            Form::Identity
            | Form::Descend
            | Form::Literal(_)
            | Form::Format(_)
            | Form::Variable(_)
            | Form::Break(_) => 0,
            Form::Text(_, parts) => {
                let heights = parts.iter().map(|part| match part {
                    Part::Text(_) => 0,
                    Part::Term(term) => term.height,
                });
                heights.max().unwrap_or(0)
            }
            Form::Slice(term, from, to) => term.height.max(maybe(from)).max(maybe(to)),
            Form::Iterate(term) | Form::Negate(term) | Form::Label(_, term) => term.height,
            Form::Try(term, handler) => term.height.max(maybe(handler)),
            Form::Array(term) => maybe(term),
            Form::Object(entries) => entries.iter().map(|(key, value)| of(&[key, value])).max().unwrap_or(0),
            Form::Index(a, b)
            | Form::Pipe(a, b)
            | Form::Comma(a, b)
            | Form::Binary(_, a, b)
            | Form::Both(a, b)
            | Form::Either(a, b)
            | Form::Alternative(a, b)
            | Form::Assign(a, b)
            | Form::Update(a, b)
            | Form::UpdateBy(_, a, b) => of(&[a, b]),
            Form::Bind(source, pattern, body) => of(&[source, body]).max(pattern.height()),
            Form::If(condition, then, otherwise) => of(&[condition, then]).max(maybe(otherwise)),
            Form::Reduce(fold) => fold.height(),
            Form::Foreach(fold, extract) => fold.height().max(maybe(extract)),
            Form::Def(def, body) => of(&[&def.body, body]),
            Form::Call(_, arguments) => arguments.iter().map(|term| term.height).max().unwrap_or(0),
        }
    }
}

impl Fold {
    pub(super) fn height(&self) -> u16 {
        let terms = [&self.source, &self.init, &self.update];
        let highest = terms.iter().map(|term| term.height).max();
        highest.unwrap_or(0).max(self.pattern.height())
    }
}

impl Pattern {
    pub(super) fn height(&self) -> u16 {
        match self {
            Pattern::Variable(_) => 1,
            Pattern::Array(elements) => 1 + elements.iter().map(Pattern::height).max().unwrap_or(0),
            Pattern::Object(entries) => {
                let heights = entries.iter().map(|(key, pattern)| {
                    let below = pattern.as_ref().map_or(0, Pattern::height);
                    key.name.height.max(below)
                });
                1 + heights.max().unwrap_or(0)
            }
        }
    }
}
