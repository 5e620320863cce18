//! Parses tokens to a statement: the grammar of the rule SQL of EMQX, by recursive descent.
//!
//! The grammar accepts more than EMQX: complete conditions in fields and arguments, keywords as keys of a path,
//! `a['key']`, and `mod` between operands. Precedence, lowest first: OR, AND, NOT, comparison and IN, `+ -`, `* / div
//! mod`, sign.

use rule_values::{Text, Value, nearest};

use crate::compare::ComparisonOperator;
use crate::error::{RuleError, TextPosition};
use crate::expr::{Arithmetic, Expr, ExprKind, OutputField, OutputPath, PathStep, Variable};
use crate::functions;
use crate::lex::{PositionedToken, SqlToken, tokens};
use crate::limits::RuleLimits;

#[derive(Debug)]
pub(crate) struct SqlStatement {
    pub kind: StatementKind,
    /// The names in FROM as written.
    pub from: Vec<(String, TextPosition)>,
    pub condition: Option<Expr>,
}

#[derive(Debug)]
pub(crate) enum StatementKind {
    Select(Vec<OutputField>),
    Foreach {
        /// The last field is the array.
        fields: Vec<OutputField>,
        each: Option<Vec<OutputField>>,
        incase: Option<Expr>,
    },
}

pub(crate) fn statement(sql: &str, limits: &RuleLimits) -> Result<SqlStatement, RuleError> {
    if sql.len() > limits.sql_bytes_max {
        let found = format!("{} bytes", sql.len());
        let expected = format!("at most {} bytes of SQL", limits.sql_bytes_max);
        return Err(RuleError::new(TextPosition { line: 1, column: 1 }, found, expected));
    }
    let mut parser = SqlParser {
        tokens: tokens(sql)?,
        at: 0,
        nesting: limits.nesting_max,
        depth_max: limits.nesting_max.saturating_mul(4),
    };
    parser.statement()
}

/// Maximum number of steps in a path. Writing to the path creates a value of this depth.
pub(crate) const STEPS_MAX: usize = 64;

pub(crate) struct SqlParser {
    tokens: Vec<PositionedToken>,
    at: usize,
    /// Remaining nesting levels.
    nesting: u16,
    depth_max: u16,
}

impl SqlParser {
    fn statement(&mut self) -> Result<SqlStatement, RuleError> {
        let kind = if self.keyword("SELECT") {
            StatementKind::Select(self.fields()?)
        } else if self.keyword("FOREACH") {
            self.foreach()?
        } else {
            return self.expected("SELECT or FOREACH");
        };
        if !self.keyword("FROM") {
            return self.expected(match kind {
                StatementKind::Select(_) => "an operator, AS, a comma or FROM",
                StatementKind::Foreach { .. } => "an operator, AS, a comma, DO, INCASE or FROM",
            });
        }
        let mut from = vec![self.source()?];
        while self.symbol(",") {
            from.push(self.source()?);
        }
        let condition = if self.keyword("WHERE") {
            Some(self.condition()?)
        } else {
            None
        };
        if *self.peek() != SqlToken::End {
            let expected = if condition.is_some() {
                "an operator or the end of the rule"
            } else {
                "a comma, WHERE or the end of the rule"
            };
            return self.expected(expected);
        }
        Ok(SqlStatement { kind, from, condition })
    }

    fn foreach(&mut self) -> Result<StatementKind, RuleError> {
        let fields = self.fields()?;
        let each = if self.keyword("DO") { Some(self.fields()?) } else { None };
        let incase = if self.keyword("INCASE") {
            Some(self.condition()?)
        } else {
            None
        };
        Ok(StatementKind::Foreach { fields, each, incase })
    }

    fn source(&mut self) -> Result<(String, TextPosition), RuleError> {
        let position = self.position();
        match self.peek().clone() {
            SqlToken::Name(name) | SqlToken::Text(name) => {
                self.at += 1;
                Ok((name, position))
            }
            _ => self.expected("a topic filter or an event in double quotes"),
        }
    }

    fn fields(&mut self) -> Result<Vec<OutputField>, RuleError> {
        let mut fields = vec![self.field(1)?];
        while self.symbol(",") {
            fields.push(self.field(fields.len() + 1)?);
        }
        Ok(fields)
    }

    /// `number` is used for the name of a field without AS.
    fn field(&mut self, number: usize) -> Result<OutputField, RuleError> {
        let position = self.position();
        if self.symbol("*") {
            return Ok(OutputField::All(position));
        }
        let value = self.condition()?;
        let has_alias = self.keyword("AS") || matches!(self.peek(), SqlToken::Name(_));
        let target = if has_alias {
            self.target()?
        } else {
            implied_target(&value, number)
        };
        Ok(OutputField::Value { value, target })
    }

    fn target(&mut self) -> Result<OutputPath, RuleError> {
        let position = self.position();
        let SqlToken::Name(name) = self.peek().clone() else {
            return self.expected("a name after AS");
        };
        self.at += 1;
        Ok(OutputPath {
            position,
            name: name.into(),
            path: self.path()?,
            is_explicit: true,
        })
    }

    /// Runs `parse` one nesting level deeper.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut SqlParser) -> Result<T, RuleError>) -> Result<T, RuleError> {
        let Some(left) = self.nesting.checked_sub(1) else {
            return self.expected("less nesting");
        };
        self.nesting = left;
        let parsed = parse(self)?;
        self.nesting += 1;
        Ok(parsed)
    }

    pub fn condition(&mut self) -> Result<Expr, RuleError> {
        self.nested(|parser| {
            parser.chain("OR", ExprKind::Or, |parser| {
                parser.chain("AND", ExprKind::And, SqlParser::negation)
            })
        })
    }

    fn chain(
        &mut self,
        keyword: &'static str,
        make: impl Fn(Vec<Expr>) -> ExprKind,
        operand: impl Fn(&mut SqlParser) -> Result<Expr, RuleError>,
    ) -> Result<Expr, RuleError> {
        let position = self.position();
        let first = operand(self)?;
        if *self.peek() != SqlToken::Keyword(keyword) {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.keyword(keyword) {
            operands.push(operand(self)?);
        }
        self.make(position, make(operands))
    }

    fn negation(&mut self) -> Result<Expr, RuleError> {
        let position = self.position();
        if !self.keyword("NOT") {
            return self.comparison();
        }
        let inner = self.nested(SqlParser::negation)?;
        self.make(position, ExprKind::Not(inner.into()))
    }

    fn comparison(&mut self) -> Result<Expr, RuleError> {
        let left = self.sum()?;
        let position = self.position();
        let operator = match self.peek() {
            SqlToken::Symbol("=") => ComparisonOperator::Equal,
            SqlToken::Symbol("!=" | "<>") => ComparisonOperator::NotEqual,
            SqlToken::Symbol("<") => ComparisonOperator::Less,
            SqlToken::Symbol("<=") => ComparisonOperator::LessOrEqual,
            SqlToken::Symbol(">") => ComparisonOperator::Greater,
            SqlToken::Symbol(">=") => ComparisonOperator::GreaterOrEqual,
            SqlToken::Symbol("=~") => ComparisonOperator::MatchesFilter,
            SqlToken::Keyword("IN" | "NOT") => return self.membership(left),
            _ => return Ok(left),
        };
        self.at += 1;
        let right = self.sum()?;
        let form = ExprKind::Compare {
            operator,
            left: left.into(),
            right: right.into(),
        };
        self.make(position, form)
    }

    fn membership(&mut self, item: Expr) -> Result<Expr, RuleError> {
        let position = self.position();
        let is_negated = self.keyword("NOT");
        if !self.keyword("IN") {
            return self.expected("IN");
        }
        self.require("(")?;
        let list = self.arguments(")")?;
        let form = ExprKind::In {
            item: item.into(),
            list,
            is_negated,
        };
        self.make(position, form)
    }

    fn sum(&mut self) -> Result<Expr, RuleError> {
        let mut left = self.product()?;
        loop {
            let operator = match self.peek() {
                SqlToken::Symbol("+") => Arithmetic::Add,
                SqlToken::Symbol("-") => Arithmetic::Subtract,
                _ => return Ok(left),
            };
            left = self.arithmetic(operator, left, SqlParser::product)?;
        }
    }

    fn product(&mut self) -> Result<Expr, RuleError> {
        let mut left = self.signed()?;
        loop {
            let operator = match self.peek() {
                SqlToken::Symbol("*") => Arithmetic::Multiply,
                SqlToken::Symbol("/") => Arithmetic::Divide,
                SqlToken::Name(name) if name.eq_ignore_ascii_case("div") && self.operand_follows() => {
                    Arithmetic::IntegerDivide
                }
                SqlToken::Name(name) if name.eq_ignore_ascii_case("mod") && self.operand_follows() => {
                    Arithmetic::Modulo
                }
                _ => return Ok(left),
            };
            left = self.arithmetic(operator, left, SqlParser::signed)?;
        }
    }

    fn arithmetic(
        &mut self,
        operator: Arithmetic,
        left: Expr,
        operand: impl Fn(&mut SqlParser) -> Result<Expr, RuleError>,
    ) -> Result<Expr, RuleError> {
        let position = self.position();
        self.at += 1;
        let right = operand(self)?;
        let form = ExprKind::Arithmetic {
            operator,
            left: left.into(),
            right: right.into(),
        };
        self.make(position, form)
    }

    /// Returns whether `div` or `mod` is an operator here and not an alias.
    fn operand_follows(&self) -> bool {
        match &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].token {
            SqlToken::Name(_) | SqlToken::Text(_) | SqlToken::Int(_) | SqlToken::Float(_) => true,
            SqlToken::Symbol(symbol) => matches!(*symbol, "(" | "-" | "+"),
            SqlToken::Keyword(word) => *word == "CASE",
            SqlToken::End => false,
        }
    }

    fn signed(&mut self) -> Result<Expr, RuleError> {
        let position = self.position();
        let make: fn(Box<Expr>) -> ExprKind = match self.peek() {
            SqlToken::Symbol("-") => ExprKind::Negate,
            SqlToken::Symbol("+") => ExprKind::Plus,
            _ => return self.primary(),
        };
        self.at += 1;
        let inner = self.nested(SqlParser::signed)?;
        self.make(position, make(inner.into()))
    }

    fn primary(&mut self) -> Result<Expr, RuleError> {
        let position = self.position();
        match self.peek().clone() {
            SqlToken::Text(text) => self.constant(Value::from(text)),
            SqlToken::Int(digits) => match digits.parse() {
                Ok(int) => self.constant(Value::Int(int)),
                Err(_) => self.expected("an integer of at most 128 bits"),
            },
            SqlToken::Float(digits) => match rule_values::number::parse_float(digits.as_bytes()) {
                Some(float) => self.constant(Value::Float(float)),
                None => self.expected("a number in the range of a 64-bit float"),
            },
            SqlToken::Name(name) => self.named(name, position),
            SqlToken::Keyword("CASE") => self.nested(SqlParser::case),
            SqlToken::Symbol("(") => {
                self.at += 1;
                let inner = self.condition()?;
                self.require(")")?;
                Ok(inner)
            }
            SqlToken::Symbol("[") => self.list(position),
            SqlToken::Keyword(word @ ("IF" | "ELSIF")) => {
                let error = RuleError::new(position, word, "a value");
                Err(error.suggest(Some("write CASE WHEN … THEN … ELSE … END".to_owned())))
            }
            _ => self.expected("a value"),
        }
    }

    fn constant(&mut self, value: Value) -> Result<Expr, RuleError> {
        let position = self.position();
        self.at += 1;
        self.make(position, ExprKind::Const(value))
    }

    fn list(&mut self, position: TextPosition) -> Result<Expr, RuleError> {
        if let Some((begin, end)) = self.range()? {
            return self.make(position, ExprKind::Range { begin, end });
        }
        self.at += 1;
        let items = self.arguments("]")?;
        self.make(position, ExprKind::List(items))
    }

    /// Parses `[1..-2]` if it follows.
    fn range(&mut self) -> Result<Option<(i64, i64)>, RuleError> {
        let start = self.at;
        if let Some(range) = self.try_range() {
            return Ok(Some(range));
        }
        self.at = start;
        Ok(None)
    }

    fn try_range(&mut self) -> Option<(i64, i64)> {
        self.symbol("[").then_some(())?;
        let begin = self.signed_int()?;
        self.symbol("..").then_some(())?;
        let end = self.signed_int()?;
        self.symbol("]").then_some((begin, end))
    }

    fn signed_int(&mut self) -> Option<i64> {
        let sign = if self.symbol("-") { -1 } else { 1 };
        self.symbol("+");
        let SqlToken::Int(digits) = self.peek() else {
            return None;
        };
        let int: i64 = digits.parse().ok()?;
        self.at += 1;
        Some(sign * int)
    }

    fn case(&mut self) -> Result<Expr, RuleError> {
        let position = self.position();
        self.at += 1;
        let subject = if *self.peek() == SqlToken::Keyword("WHEN") {
            None
        } else {
            Some(self.condition()?.into())
        };
        let mut branches = Vec::new();
        while self.keyword("WHEN") {
            let condition = self.condition()?;
            if !self.keyword("THEN") {
                return self.expected("an operator or THEN");
            }
            branches.push((condition, self.condition()?));
        }
        if branches.is_empty() {
            return self.expected("an operator or WHEN");
        }
        let otherwise = if self.keyword("ELSE") {
            Some(self.condition()?.into())
        } else {
            None
        };
        if !self.keyword("END") {
            return self.expected("an operator, WHEN, ELSE or END");
        }
        let form = ExprKind::Case {
            subject,
            branches,
            default: otherwise,
        };
        self.make(position, form)
    }

    /// Parses a variable, a slice of a variable, or a function call.
    fn named(&mut self, name: String, position: TextPosition) -> Result<Expr, RuleError> {
        self.at += 1;
        if self.symbol("(") {
            return self.call(&name, position);
        }
        if matches!(name.as_str(), "true" | "false") {
            return self.make(position, ExprKind::Const(Value::Bool(name == "true")));
        }
        let path = self.path()?;
        if *self.peek() == SqlToken::Symbol("(") {
            let error = RuleError::new(
                position,
                format!("a function in {name:?}"),
                "a function without a module",
            );
            return Err(error.suggest(Some("functions in modules are not supported".to_owned())));
        }
        let variable = Variable {
            name: name.into(),
            path,
            column: None,
            is_selected: false,
            is_in_scope: false,
            slot: None,
        };
        let variable = self.make(position, ExprKind::Variable(variable))?;
        let Some((begin, end)) = self.range()? else {
            return Ok(variable);
        };
        let form = ExprKind::Slice {
            array: variable.into(),
            begin,
            end,
        };
        self.make(position, form)
    }

    fn call(&mut self, name: &str, position: TextPosition) -> Result<Expr, RuleError> {
        let Some(function) = functions::find(name) else {
            return Err(unknown_function(name, position));
        };
        let arguments = self.arguments(")")?;
        if !function.takes(arguments.len()) {
            let found = match arguments.len() {
                1 => format!("1 argument of {name}"),
                count => format!("{count} arguments of {name}"),
            };
            return Err(RuleError::new(position, found, function.signature()));
        }
        let form = ExprKind::Call {
            function,
            arguments,
            constant: None,
        };
        self.make(position, form)
    }

    /// Parses values up to and including the closing symbol.
    fn arguments(&mut self, close: &'static str) -> Result<Vec<Expr>, RuleError> {
        let mut arguments = Vec::new();
        if self.symbol(close) {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.condition()?);
            if self.symbol(close) {
                return Ok(arguments);
            }
            if !self.symbol(",") {
                return self.expected(&format!("an operator, a comma or {close}"));
            }
        }
    }

    /// Parses the keys and indexes after a name.
    fn path(&mut self) -> Result<Vec<PathStep>, RuleError> {
        let mut path = Vec::new();
        loop {
            if path.len() > STEPS_MAX {
                return self.expected("a path of at most 64 steps");
            }
            if self.symbol(".") {
                let key = match self.peek() {
                    SqlToken::Name(key) | SqlToken::Text(key) | SqlToken::Int(key) => Text::from(key.as_str()),
                    SqlToken::Keyword(key) => Text::from(key.to_ascii_lowercase()),
                    _ => return self.expected("a key after the point"),
                };
                self.at += 1;
                path.push(PathStep::Key(key));
            } else if *self.peek() == SqlToken::Symbol("[") && !self.is_range() {
                self.at += 1;
                path.push(self.index()?);
            } else {
                return Ok(path);
            }
        }
    }

    fn is_range(&mut self) -> bool {
        let start = self.at;
        let is_range = self.try_range().is_some();
        self.at = start;
        is_range
    }

    fn index(&mut self) -> Result<PathStep, RuleError> {
        let position = self.position();
        let is_negative = *self.peek() == SqlToken::Symbol("-");
        let step = match self.peek().clone() {
            SqlToken::Text(key) => {
                self.at += 1;
                PathStep::Key(key.into())
            }
            SqlToken::Name(name) => {
                self.at += 1;
                let path = self.nested(SqlParser::path)?;
                let variable = Variable {
                    name: name.into(),
                    path,
                    column: None,
                    is_selected: false,
                    is_in_scope: false,
                    slot: None,
                };
                PathStep::Variable(variable.into(), position)
            }
            _ => match self.signed_int() {
                Some(0) if is_negative => PathStep::Tail,
                Some(0) => PathStep::Head,
                Some(index) => PathStep::Index(index),
                None => return self.expected("an index: a number, a name or a key in single quotes"),
            },
        };
        self.require("]")?;
        Ok(step)
    }

    fn make(&self, position: TextPosition, form: ExprKind) -> Result<Expr, RuleError> {
        let mut below = 0;
        form.children(&mut |child| below = below.max(child.depth));
        if below >= self.depth_max {
            return Err(RuleError::new(position, "a very long expression", "less nesting"));
        }
        Ok(Expr {
            position,
            depth: below + 1,
            kind: form,
        })
    }

    fn peek(&self) -> &SqlToken {
        &self.tokens[self.at].token
    }

    fn position(&self) -> TextPosition {
        self.tokens[self.at].position
    }

    fn keyword(&mut self, word: &'static str) -> bool {
        let is_here = *self.peek() == SqlToken::Keyword(word);
        self.at += usize::from(is_here);
        is_here
    }

    fn symbol(&mut self, symbol: &'static str) -> bool {
        let is_here = *self.peek() == SqlToken::Symbol(symbol);
        self.at += usize::from(is_here);
        is_here
    }

    fn require(&mut self, symbol: &'static str) -> Result<(), RuleError> {
        if self.symbol(symbol) {
            Ok(())
        } else {
            self.expected(symbol)
        }
    }

    fn expected<T>(&self, expected: &str) -> Result<T, RuleError> {
        Err(RuleError::new(self.position(), self.peek().describe(), expected))
    }
}

fn unknown_function(name: &str, position: TextPosition) -> RuleError {
    if let Some(reason) = functions::unsupported_reason(name) {
        return RuleError::new(
            position,
            format!("function {name}"),
            format!("another function: {reason}"),
        );
    }
    let suggestion = nearest(name, functions::all().map(|function| function.name));
    let error = RuleError::new(
        position,
        format!("unknown function {name}"),
        "a function of docs/reference/rule-functions.md",
    );
    error.suggest(suggestion.map(|nearest| format!("did you mean {nearest}?")))
}

/// The key of a field without AS: its own path, or a generated name that is the same for every message.
fn implied_target(value: &Expr, number: usize) -> OutputPath {
    let (name, path) = match &value.kind {
        ExprKind::Variable(variable) => (variable.name.clone(), variable.path.clone()),
        ExprKind::Slice { array, .. } => match &array.kind {
            ExprKind::Variable(variable) => (variable.name.clone(), variable.path.clone()),
            _ => (Text::from(format!("_v_slice_{number}")), Vec::new()),
        },
        ExprKind::Const(Value::Text(text)) => (text.clone(), Vec::new()),
        other => (Text::from(format!("_v_{}_{number}", default_alias(other))), Vec::new()),
    };
    OutputPath {
        position: value.position,
        name,
        path,
        is_explicit: false,
    }
}

fn default_alias(form: &ExprKind) -> String {
    match form {
        ExprKind::Call { function, .. } => format!("fun_{}", function.name),
        ExprKind::Arithmetic { operator, .. } => format!("op_{}", operator.symbol()),
        ExprKind::List(_) => "list".to_owned(),
        ExprKind::Range { .. } => "range".to_owned(),
        ExprKind::Case { .. } => "case".to_owned(),
        ExprKind::Const(_) => "const".to_owned(),
        _ => "op".to_owned(),
    }
}
