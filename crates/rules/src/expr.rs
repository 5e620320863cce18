//! A compiled expression: what the parser builds, `resolve` completes, and `eval` walks.

use crate::error::Position;
use crate::event::Column;
use crate::functions::{Compiled, Function};
use crate::text::Text;
use crate::value::Value;

#[derive(Debug)]
pub(crate) struct Expr {
    pub position: Position,
    /// Levels of this tree: what walking it costs in stack.
    pub depth: u16,
    pub form: Form,
}

#[derive(Debug)]
pub(crate) enum Form {
    Const(Value),
    Variable(Variable),
    List(Vec<Expr>),
    /// `[1..5]`
    Range {
        begin: i64,
        end: i64,
    },
    /// `a[2..4]`
    Slice {
        array: Box<Expr>,
        begin: i64,
        end: i64,
    },
    Plus(Box<Expr>),
    Negate(Box<Expr>),
    Arithmetic {
        operator: Arithmetic,
        left: Box<Expr>,
        right: Box<Expr>,
    },
    Compare {
        operator: Comparison,
        left: Box<Expr>,
        right: Box<Expr>,
    },
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    In {
        item: Box<Expr>,
        list: Vec<Expr>,
        is_negated: bool,
    },
    Case {
        subject: Option<Box<Expr>>,
        branches: Vec<(Expr, Expr)>,
        otherwise: Option<Box<Expr>>,
    },
    Call {
        function: &'static Function,
        arguments: Vec<Expr>,
        /// Its pattern or program, if that is constant.
        constant: Option<Box<Compiled>>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    IntegerDivide,
    Modulo,
}

impl Arithmetic {
    pub fn symbol(self) -> &'static str {
        match self {
            Arithmetic::Add => "+",
            Arithmetic::Subtract => "-",
            Arithmetic::Multiply => "*",
            Arithmetic::Divide => "/",
            Arithmetic::IntegerDivide => "div",
            Arithmetic::Modulo => "mod",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    MatchesFilter,
}

/// A name and what follows it: `payload.a.b[1]`.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub name: Text,
    pub path: Vec<Step>,
    /// Of the event, if it has one of this name.
    pub column: Option<Column>,
    /// An earlier field of this clause may have this name, which goes before the event's.
    pub is_selected: bool,
    /// A field of FOREACH, or the element, has this name.
    pub is_in_scope: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Key(Text),
    /// From 1, or from the end with -1.
    Index(i64),
    /// `[0]`: in an alias, before the first element.
    Head,
    /// `[-0]`: in an alias, behind the last element.
    Tail,
    /// `[x]`, `[x.y]`
    By(Box<Variable>, Position),
}

/// One of the fields of SELECT, DO or FOREACH.
#[derive(Debug)]
pub(crate) enum Field {
    /// `*`
    All(Position),
    Value {
        value: Expr,
        target: Target,
    },
}

/// Where a field is put in the output.
#[derive(Debug)]
pub(crate) struct Target {
    pub position: Position,
    pub name: Text,
    pub path: Vec<Step>,
    /// Written with AS, and not made from the expression.
    pub is_explicit: bool,
}

impl Expr {
    /// Calls `visit` with this expression and all below it, outermost first.
    pub fn walk<'a>(&'a self, visit: &mut dyn FnMut(&'a Expr)) {
        visit(self);
        self.form.children(&mut |child| child.walk(visit));
    }
}

impl Form {
    pub fn children<'a>(&'a self, visit: &mut dyn FnMut(&'a Expr)) {
        match self {
            Form::Const(_) | Form::Variable(_) | Form::Range { .. } => {}
            Form::List(items) | Form::And(items) | Form::Or(items) => items.iter().for_each(visit),
            Form::Slice { array: inner, .. } | Form::Plus(inner) | Form::Negate(inner) | Form::Not(inner) => {
                visit(inner)
            }
            Form::Arithmetic { left, right, .. } | Form::Compare { left, right, .. } => {
                visit(left);
                visit(right);
            }
            Form::In { item, list, .. } => {
                visit(item);
                list.iter().for_each(visit);
            }
            Form::Case {
                subject,
                branches,
                otherwise,
            } => {
                subject.iter().for_each(|subject| visit(subject));
                for (condition, value) in branches {
                    visit(condition);
                    visit(value);
                }
                otherwise.iter().for_each(|otherwise| visit(otherwise));
            }
            Form::Call { arguments, .. } => arguments.iter().for_each(visit),
        }
    }

    pub fn children_mut(&mut self) -> Vec<&mut Expr> {
        match self {
            Form::Const(_) | Form::Variable(_) | Form::Range { .. } => Vec::new(),
            Form::List(items) | Form::And(items) | Form::Or(items) => items.iter_mut().collect(),
            Form::Slice { array: inner, .. } | Form::Plus(inner) | Form::Negate(inner) | Form::Not(inner) => {
                vec![inner]
            }
            Form::Arithmetic { left, right, .. } | Form::Compare { left, right, .. } => vec![left, right],
            Form::In { item, list, .. } => std::iter::once(&mut **item).chain(list).collect(),
            Form::Case {
                subject,
                branches,
                otherwise,
            } => subject
                .iter_mut()
                .map(|subject| &mut **subject)
                .chain(branches.iter_mut().flat_map(|(condition, value)| [condition, value]))
                .chain(otherwise.iter_mut().map(|otherwise| &mut **otherwise))
                .collect(),
            Form::Call { arguments, .. } => arguments.iter_mut().collect(),
        }
    }
}
