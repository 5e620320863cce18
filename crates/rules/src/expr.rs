//! A compiled expression: the parser creates it, `resolve` completes it, and `eval` evaluates it.

use rule_values::{Text, Value};

use crate::compare::ComparisonOperator;
use crate::error::TextPosition;
use crate::event::Column;
use crate::functions::{CompiledArgument, Function};

#[derive(Debug)]
pub(crate) struct Expr {
    pub position: TextPosition,
    /// Depth of this tree. Determines the stack that walking it needs.
    pub depth: u16,
    pub kind: ExprKind,
}

#[derive(Debug)]
pub(crate) enum ExprKind {
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
        operator: ComparisonOperator,
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
        default: Option<Box<Expr>>,
    },
    Call {
        function: &'static Function,
        arguments: Vec<Expr>,
        /// The compiled pattern or program, if the argument is constant.
        constant: Option<Box<CompiledArgument>>,
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

/// A name and the path after it: `payload.a.b[1]`.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub name: Text,
    pub path: Vec<PathStep>,
    /// The column of the event with this name, if there is one.
    pub column: Option<Column>,
    /// An earlier field of this clause may have this name. It has precedence over the column.
    pub is_selected: bool,
    /// A field of FOREACH or the element has this name.
    pub is_in_scope: bool,
    /// Index of the cached value, if it is the same for every element of FOREACH.
    pub slot: Option<usize>,
}

#[derive(Clone, Debug)]
pub(crate) enum PathStep {
    Key(Text),
    /// Indexes begin with 1; -1 is the last element.
    Index(i64),
    /// `[0]`: before the first element, in an alias.
    Head,
    /// `[-0]`: after the last element, in an alias.
    Tail,
    /// `[x]`, `[x.y]`
    Variable(Box<Variable>, TextPosition),
}

/// A field of SELECT, DO or FOREACH.
#[derive(Debug)]
pub(crate) enum OutputField {
    /// `*`
    All(TextPosition),
    Value {
        value: Expr,
        target: OutputPath,
    },
}

/// The path of a field in the output.
#[derive(Debug)]
pub(crate) struct OutputPath {
    pub position: TextPosition,
    pub name: Text,
    pub path: Vec<PathStep>,
    /// True if the alias was written with AS, false if it was derived from the expression.
    pub is_explicit: bool,
}

impl OutputField {
    pub fn position(&self) -> TextPosition {
        match self {
            OutputField::All(position) => *position,
            OutputField::Value { target, .. } => target.position,
        }
    }
}

impl Expr {
    /// Calls `visit` with this expression and all expressions inside it, outermost first.
    pub fn walk<'a>(&'a self, visit: &mut dyn FnMut(&'a Expr)) {
        visit(self);
        self.kind.children(&mut |child| child.walk(visit));
    }
}

impl ExprKind {
    pub fn children<'a>(&'a self, visit: &mut dyn FnMut(&'a Expr)) {
        match self {
            ExprKind::Const(_) | ExprKind::Variable(_) | ExprKind::Range { .. } => {}
            ExprKind::List(items) | ExprKind::And(items) | ExprKind::Or(items) => items.iter().for_each(visit),
            ExprKind::Slice { array: inner, .. }
            | ExprKind::Plus(inner)
            | ExprKind::Negate(inner)
            | ExprKind::Not(inner) => visit(inner),
            ExprKind::Arithmetic { left, right, .. } | ExprKind::Compare { left, right, .. } => {
                visit(left);
                visit(right);
            }
            ExprKind::In { item, list, .. } => {
                visit(item);
                list.iter().for_each(visit);
            }
            ExprKind::Case {
                subject,
                branches,
                default: otherwise,
            } => {
                subject.iter().for_each(|subject| visit(subject));
                for (condition, value) in branches {
                    visit(condition);
                    visit(value);
                }
                otherwise.iter().for_each(|otherwise| visit(otherwise));
            }
            ExprKind::Call { arguments, .. } => arguments.iter().for_each(visit),
        }
    }

    pub fn children_mut(&mut self) -> Vec<&mut Expr> {
        match self {
            ExprKind::Const(_) | ExprKind::Variable(_) | ExprKind::Range { .. } => Vec::new(),
            ExprKind::List(items) | ExprKind::And(items) | ExprKind::Or(items) => items.iter_mut().collect(),
            ExprKind::Slice { array: inner, .. }
            | ExprKind::Plus(inner)
            | ExprKind::Negate(inner)
            | ExprKind::Not(inner) => {
                vec![inner]
            }
            ExprKind::Arithmetic { left, right, .. } | ExprKind::Compare { left, right, .. } => vec![left, right],
            ExprKind::In { item, list, .. } => std::iter::once(&mut **item).chain(list).collect(),
            ExprKind::Case {
                subject,
                branches,
                default: otherwise,
            } => subject
                .iter_mut()
                .map(|subject| &mut **subject)
                .chain(branches.iter_mut().flat_map(|(condition, value)| [condition, value]))
                .chain(otherwise.iter_mut().map(|otherwise| &mut **otherwise))
                .collect(),
            ExprKind::Call { arguments, .. } => arguments.iter_mut().collect(),
        }
    }
}
