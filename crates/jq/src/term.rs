//! A compiled jq program. Names are resolved to numbers, and the nesting depth is known.

use rule_values::Value;

use super::machine::{JqMachine, JqStop};

/// A term with its place in the text of the program.
#[derive(Debug)]
pub(super) struct Term {
    pub kind: TermKind,
    /// Start position in bytes.
    pub at: u32,
    /// Height of the tree below it. Functions that walk it recursively use the stack.
    pub height: u16,
}

#[derive(Debug)]
pub(super) enum TermKind {
    Identity,
    /// `..`
    Descend,
    Literal(Value),
    Text(Option<TextFormat>, Vec<StringPart>),
    Format(TextFormat),
    /// The value and the key.
    Index(Box<Term>, Box<Term>),
    Slice(SliceTerm),
    Iterate(Box<Term>),
    Try(Box<Term>, Option<Box<Term>>),
    Array(Option<Box<Term>>),
    Object(Vec<(Term, Term)>),
    Negate(Box<Term>),
    Pipe(Box<Term>, Box<Term>),
    Comma(Box<Term>, Box<Term>),
    Bind(Box<Term>, BindingPattern, Box<Term>),
    Binary(BinaryOperation),
    Logical(LogicalOperation),
    Alternative(Box<Term>, Box<Term>),
    Assign(Box<Term>, Box<Term>),
    Update(Box<Term>, Box<Term>),
    UpdateBy(UpdateOperation),
    If(Conditional),
    Reduce(Box<Fold>),
    Foreach(Box<Fold>, Option<Box<Term>>),
    Def(Box<Def>, Box<Term>),
    Variable(u32),
    Call(FunctionCall),
    Label(u32, Box<Term>),
    Break(u32),
}

#[derive(Debug)]
pub(super) enum StringPart {
    Text(String),
    Term(Term),
}

/// `of[from:to]`. Either bound can be missing.
#[derive(Debug)]
pub(super) struct SliceTerm {
    pub of: Box<Term>,
    pub from: Option<Box<Term>>,
    pub to: Option<Box<Term>>,
}

/// Arithmetic or a comparison.
#[derive(Debug)]
pub(super) struct BinaryOperation {
    pub operator: Operator,
    pub left: Box<Term>,
    pub right: Box<Term>,
}

/// `and` and `or`.
#[derive(Debug)]
pub(super) struct LogicalOperation {
    pub left: Box<Term>,
    pub right: Box<Term>,
    /// The value of `left` that decides the result: false for `and`, true for `or`.
    pub deciding: bool,
}

/// `left += right` and similar operators.
#[derive(Debug)]
pub(super) struct UpdateOperation {
    pub how: Updating,
    pub left: Box<Term>,
    pub right: Box<Term>,
}

/// `if`. The input is the output if there is no `else`.
#[derive(Debug)]
pub(super) struct Conditional {
    pub condition: Box<Term>,
    pub then: Box<Term>,
    pub otherwise: Option<Box<Term>>,
}

/// The parts of `reduce` and `foreach`.
#[derive(Debug)]
pub(super) struct Fold {
    pub source: Term,
    pub pattern: BindingPattern,
    pub init: Term,
    pub update: Term,
}

#[derive(Debug)]
pub(super) enum BindingPattern {
    Variable(u32),
    Array(Vec<BindingPattern>),
    Object(Vec<(PatternEntry, Option<BindingPattern>)>),
}

/// An entry in a pattern: its key, and the variable that is bound to it, if any.
#[derive(Debug)]
pub(super) struct PatternEntry {
    pub name: Term,
    pub variable: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Def {
    pub id: u32,
    pub params: Vec<Param>,
    pub body: Term,
}

/// A parameter is a filter; `$name` is also a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Param {
    pub id: u32,
    pub variable: Option<u32>,
}

#[derive(Debug)]
pub(super) struct FunctionCall {
    pub target: CallTarget,
    pub arguments: Vec<Term>,
}

/// The target of a call.
#[derive(Debug)]
pub(super) enum CallTarget {
    Def(u32),
    Param(u32),
    /// Index in the prelude.
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

/// `+=` and similar operators.
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

pub(super) type ValueFunction = fn(&mut JqMachine, Value, &[Value]) -> Result<Value, JqStop>;

#[derive(Clone, Copy, Debug)]
pub(super) enum Native {
    /// A function of the input and the values of its arguments.
    Values(ValueFunction),
    Number(fn(f64) -> f64),
    Numbers(fn(f64, f64) -> f64),
    Special(Special),
}

/// Native functions whose arguments are filters.
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

impl TermKind {
    /// Height of the terms below it.
    pub(super) fn height(&self) -> u16 {
        let of = |terms: &[&Term]| terms.iter().map(|term| term.height).max().unwrap_or(0);
        let maybe = |term: &Option<Box<Term>>| term.as_ref().map_or(0, |term| term.height);
        match self {
            TermKind::Identity
            | TermKind::Descend
            | TermKind::Literal(_)
            | TermKind::Format(_)
            | TermKind::Variable(_)
            | TermKind::Break(_) => 0,
            TermKind::Text(_, parts) => {
                let heights = parts.iter().map(|part| match part {
                    StringPart::Text(_) => 0,
                    StringPart::Term(term) => term.height,
                });
                heights.max().unwrap_or(0)
            }
            TermKind::Slice(slice) => slice.of.height.max(maybe(&slice.from)).max(maybe(&slice.to)),
            TermKind::Iterate(term) | TermKind::Negate(term) | TermKind::Label(_, term) => term.height,
            TermKind::Try(term, handler) => term.height.max(maybe(handler)),
            TermKind::Array(term) => maybe(term),
            TermKind::Object(entries) => entries.iter().map(|(key, value)| of(&[key, value])).max().unwrap_or(0),
            TermKind::Index(a, b)
            | TermKind::Pipe(a, b)
            | TermKind::Comma(a, b)
            | TermKind::Alternative(a, b)
            | TermKind::Assign(a, b)
            | TermKind::Update(a, b) => of(&[a, b]),
            TermKind::Binary(operation) => of(&[&operation.left, &operation.right]),
            TermKind::Logical(operation) => of(&[&operation.left, &operation.right]),
            TermKind::UpdateBy(operation) => of(&[&operation.left, &operation.right]),
            TermKind::Bind(source, pattern, body) => of(&[source, body]).max(pattern.height()),
            TermKind::If(choice) => of(&[&choice.condition, &choice.then]).max(maybe(&choice.otherwise)),
            TermKind::Reduce(fold) => fold.height(),
            TermKind::Foreach(fold, extract) => fold.height().max(maybe(extract)),
            TermKind::Def(def, body) => of(&[&def.body, body]),
            TermKind::Call(call) => call.arguments.iter().map(|term| term.height).max().unwrap_or(0),
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

impl BindingPattern {
    pub(super) fn height(&self) -> u16 {
        match self {
            BindingPattern::Variable(_) => 1,
            BindingPattern::Array(elements) => 1 + elements.iter().map(BindingPattern::height).max().unwrap_or(0),
            BindingPattern::Object(entries) => {
                let heights = entries.iter().map(|(key, pattern)| {
                    let below = pattern.as_ref().map_or(0, BindingPattern::height);
                    key.name.height.max(below)
                });
                1 + heights.max().unwrap_or(0)
            }
        }
    }
}
