//! Tokens to a statement: the grammar of EMQX's rule SQL, by recursive descent.
//!
//! More is taken than EMQX takes where it does no harm: whole conditions in fields and arguments, keywords as keys of a
//! path, `a['key']`, `mod` between operands. Loosest first: OR, AND, NOT, comparison and IN, `+ -`, `* / div mod`, sign.

use crate::error::{Position, RuleError, nearest};
use crate::expr::{Arithmetic, Comparison, Expr, Field, Form, Step, Target, Variable};
use crate::functions;
use crate::lex::{Placed, Token, tokens};
use crate::rule::Limits;
use crate::text::Text;
use crate::value::Value;

#[derive(Debug)]
pub(crate) struct Statement {
    pub kind: StatementKind,
    /// Names in FROM, as written.
    pub from: Vec<(String, Position)>,
    pub condition: Option<Expr>,
}

#[derive(Debug)]
pub(crate) enum StatementKind {
    Select(Vec<Field>),
    Foreach {
        /// The last one is the array.
        fields: Vec<Field>,
        each: Option<Vec<Field>>,
        incase: Option<Expr>,
    },
}

pub(crate) fn statement(sql: &str, limits: &Limits) -> Result<Statement, RuleError> {
    if sql.len() > limits.sql_bytes_max {
        let found = format!("{} bytes", sql.len());
        let expected = format!("at most {} bytes of SQL", limits.sql_bytes_max);
        return Err(RuleError::new(Position { line: 1, column: 1 }, found, expected));
    }
    let mut parser = Parser {
        tokens: tokens(sql)?,
        at: 0,
        nesting: limits.nesting_max,
        depth_max: limits.nesting_max.saturating_mul(4),
    };
    parser.statement()
}

/// Of a path: what puts a value there goes as deep.
const STEPS_MAX: usize = 64;

pub(crate) struct Parser {
    tokens: Vec<Placed>,
    at: usize,
    /// Levels left.
    nesting: u16,
    depth_max: u16,
}

impl Parser {
    fn statement(&mut self) -> Result<Statement, RuleError> {
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
        if *self.peek() != Token::End {
            let expected = if condition.is_some() {
                "an operator or the end of the rule"
            } else {
                "a comma, WHERE or the end of the rule"
            };
            return self.expected(expected);
        }
        Ok(Statement { kind, from, condition })
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

    fn source(&mut self) -> Result<(String, Position), RuleError> {
        let position = self.position();
        match self.peek().clone() {
            Token::Name(name) | Token::Text(name) => {
                self.at += 1;
                Ok((name, position))
            }
            _ => self.expected("a topic filter or an event in double quotes"),
        }
    }

    fn fields(&mut self) -> Result<Vec<Field>, RuleError> {
        let mut fields = vec![self.field(1)?];
        while self.symbol(",") {
            fields.push(self.field(fields.len() + 1)?);
        }
        Ok(fields)
    }

    /// `number` makes the name of a field that has none.
    fn field(&mut self, number: usize) -> Result<Field, RuleError> {
        let position = self.position();
        if self.symbol("*") {
            return Ok(Field::All(position));
        }
        let value = self.condition()?;
        let has_alias = self.keyword("AS") || matches!(self.peek(), Token::Name(_));
        let target = if has_alias {
            self.target()?
        } else {
            implied_target(&value, number)
        };
        Ok(Field::Value { value, target })
    }

    fn target(&mut self) -> Result<Target, RuleError> {
        let position = self.position();
        let Token::Name(name) = self.peek().clone() else {
            return self.expected("a name behind AS");
        };
        self.at += 1;
        Ok(Target {
            position,
            name: name.into(),
            path: self.path()?,
            is_explicit: true,
        })
    }

    /// One level deeper for the time of `parse`.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Parser) -> Result<T, RuleError>) -> Result<T, RuleError> {
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
            parser.chain("OR", Form::Or, |parser| {
                parser.chain("AND", Form::And, Parser::negation)
            })
        })
    }

    fn chain(
        &mut self,
        keyword: &'static str,
        make: impl Fn(Vec<Expr>) -> Form,
        operand: impl Fn(&mut Parser) -> Result<Expr, RuleError>,
    ) -> Result<Expr, RuleError> {
        let position = self.position();
        let first = operand(self)?;
        if *self.peek() != Token::Keyword(keyword) {
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
        let inner = self.nested(Parser::negation)?;
        self.make(position, Form::Not(inner.into()))
    }

    fn comparison(&mut self) -> Result<Expr, RuleError> {
        let left = self.sum()?;
        let position = self.position();
        let operator = match self.peek() {
            Token::Symbol("=") => Comparison::Equal,
            Token::Symbol("!=" | "<>") => Comparison::NotEqual,
            Token::Symbol("<") => Comparison::Less,
            Token::Symbol("<=") => Comparison::LessOrEqual,
            Token::Symbol(">") => Comparison::Greater,
            Token::Symbol(">=") => Comparison::GreaterOrEqual,
            Token::Symbol("=~") => Comparison::MatchesFilter,
            Token::Keyword("IN" | "NOT") => return self.membership(left),
            _ => return Ok(left),
        };
        self.at += 1;
        let right = self.sum()?;
        let form = Form::Compare {
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
        let form = Form::In {
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
                Token::Symbol("+") => Arithmetic::Add,
                Token::Symbol("-") => Arithmetic::Subtract,
                _ => return Ok(left),
            };
            left = self.arithmetic(operator, left, Parser::product)?;
        }
    }

    fn product(&mut self) -> Result<Expr, RuleError> {
        let mut left = self.signed()?;
        loop {
            let operator = match self.peek() {
                Token::Symbol("*") => Arithmetic::Multiply,
                Token::Symbol("/") => Arithmetic::Divide,
                Token::Name(name) if name.eq_ignore_ascii_case("div") && self.operand_follows() => {
                    Arithmetic::IntegerDivide
                }
                Token::Name(name) if name.eq_ignore_ascii_case("mod") && self.operand_follows() => Arithmetic::Modulo,
                _ => return Ok(left),
            };
            left = self.arithmetic(operator, left, Parser::signed)?;
        }
    }

    fn arithmetic(
        &mut self,
        operator: Arithmetic,
        left: Expr,
        operand: impl Fn(&mut Parser) -> Result<Expr, RuleError>,
    ) -> Result<Expr, RuleError> {
        let position = self.position();
        self.at += 1;
        let right = operand(self)?;
        let form = Form::Arithmetic {
            operator,
            left: left.into(),
            right: right.into(),
        };
        self.make(position, form)
    }

    /// Whether `div` or `mod` is an operator here and no alias.
    fn operand_follows(&self) -> bool {
        match &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].token {
            Token::Name(_) | Token::Text(_) | Token::Int(_) | Token::Float(_) => true,
            Token::Symbol(symbol) => matches!(*symbol, "(" | "-" | "+"),
            Token::Keyword(word) => *word == "CASE",
            Token::End => false,
        }
    }

    fn signed(&mut self) -> Result<Expr, RuleError> {
        let position = self.position();
        let make: fn(Box<Expr>) -> Form = match self.peek() {
            Token::Symbol("-") => Form::Negate,
            Token::Symbol("+") => Form::Plus,
            _ => return self.primary(),
        };
        self.at += 1;
        let inner = self.nested(Parser::signed)?;
        self.make(position, make(inner.into()))
    }

    fn primary(&mut self) -> Result<Expr, RuleError> {
        let position = self.position();
        match self.peek().clone() {
            Token::Text(text) => self.constant(Value::from(text)),
            Token::Int(digits) => match digits.parse() {
                Ok(int) => self.constant(Value::Int(int)),
                Err(_) => self.expected("an integer of at most 128 bits"),
            },
            Token::Float(digits) => match crate::number::parse_float(digits.as_bytes()) {
                Some(float) => self.constant(Value::Float(float)),
                None => self.expected("a number in the range of a 64-bit float"),
            },
            Token::Name(name) => self.named(name, position),
            Token::Keyword("CASE") => self.nested(Parser::case),
            Token::Symbol("(") => {
                self.at += 1;
                let inner = self.condition()?;
                self.require(")")?;
                Ok(inner)
            }
            Token::Symbol("[") => self.list(position),
            Token::Keyword(word @ ("IF" | "ELSIF")) => {
                let error = RuleError::new(position, word, "a value");
                Err(error.suggest(Some("write CASE WHEN … THEN … ELSE … END".to_owned())))
            }
            _ => self.expected("a value"),
        }
    }

    fn constant(&mut self, value: Value) -> Result<Expr, RuleError> {
        let position = self.position();
        self.at += 1;
        self.make(position, Form::Const(value))
    }

    fn list(&mut self, position: Position) -> Result<Expr, RuleError> {
        if let Some((begin, end)) = self.range()? {
            return self.make(position, Form::Range { begin, end });
        }
        self.at += 1;
        let items = self.arguments("]")?;
        self.make(position, Form::List(items))
    }

    /// `[1..-2]`, if that is what stands here.
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
        let Token::Int(digits) = self.peek() else {
            return None;
        };
        let int: i64 = digits.parse().ok()?;
        self.at += 1;
        Some(sign * int)
    }

    fn case(&mut self) -> Result<Expr, RuleError> {
        let position = self.position();
        self.at += 1;
        let subject = if *self.peek() == Token::Keyword("WHEN") {
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
        let form = Form::Case {
            subject,
            branches,
            otherwise,
        };
        self.make(position, form)
    }

    /// A variable, a slice of one, or a function call.
    fn named(&mut self, name: String, position: Position) -> Result<Expr, RuleError> {
        self.at += 1;
        if self.symbol("(") {
            return self.call(&name, position);
        }
        if matches!(name.as_str(), "true" | "false") {
            return self.make(position, Form::Const(Value::Bool(name == "true")));
        }
        let path = self.path()?;
        if *self.peek() == Token::Symbol("(") {
            let error = RuleError::new(
                position,
                format!("a function in {name:?}"),
                "a function without a module",
            );
            return Err(error.suggest(Some("functions of modules do not exist here".to_owned())));
        }
        let variable = Variable {
            name: name.into(),
            path,
            column: None,
            is_selected: false,
            is_in_scope: false,
        };
        let variable = self.make(position, Form::Variable(variable))?;
        let Some((begin, end)) = self.range()? else {
            return Ok(variable);
        };
        let form = Form::Slice {
            array: variable.into(),
            begin,
            end,
        };
        self.make(position, form)
    }

    fn call(&mut self, name: &str, position: Position) -> Result<Expr, RuleError> {
        let Some(function) = functions::find(name) else {
            return Err(unknown_function(name, position));
        };
        let arguments = self.arguments(")")?;
        if !function.takes(arguments.len()) {
            let found = format!("{} arguments of {name}", arguments.len());
            return Err(RuleError::new(position, found, function.signature()));
        }
        let form = Form::Call {
            function,
            arguments,
            constant: None,
        };
        self.make(position, form)
    }

    /// Values up to the closing symbol, which is taken.
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

    /// What follows a name: keys and indexes.
    fn path(&mut self) -> Result<Vec<Step>, RuleError> {
        let mut path = Vec::new();
        loop {
            if path.len() > STEPS_MAX {
                return self.expected("a path of at most 64 steps");
            }
            if self.symbol(".") {
                let key = match self.peek() {
                    Token::Name(key) | Token::Text(key) | Token::Int(key) => Text::from(key.as_str()),
                    Token::Keyword(key) => Text::from(key.to_ascii_lowercase()),
                    _ => return self.expected("a key behind the point"),
                };
                self.at += 1;
                path.push(Step::Key(key));
            } else if *self.peek() == Token::Symbol("[") && !self.is_range() {
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

    fn index(&mut self) -> Result<Step, RuleError> {
        let position = self.position();
        let is_negative = *self.peek() == Token::Symbol("-");
        let step = match self.peek().clone() {
            Token::Text(key) => {
                self.at += 1;
                Step::Key(key.into())
            }
            Token::Name(name) => {
                self.at += 1;
                let path = self.nested(Parser::path)?;
                let variable = Variable {
                    name: name.into(),
                    path,
                    column: None,
                    is_selected: false,
                    is_in_scope: false,
                };
                Step::By(variable.into(), position)
            }
            _ => match self.signed_int() {
                Some(0) if is_negative => Step::Tail,
                Some(0) => Step::Head,
                Some(index) => Step::Index(index),
                None => return self.expected("an index: a number, a name or a key in single quotes"),
            },
        };
        self.require("]")?;
        Ok(step)
    }

    fn make(&self, position: Position, form: Form) -> Result<Expr, RuleError> {
        let mut below = 0;
        form.children(&mut |child| below = below.max(child.depth));
        if below >= self.depth_max {
            return Err(RuleError::new(position, "a very long expression", "less nesting"));
        }
        Ok(Expr {
            position,
            depth: below + 1,
            form,
        })
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.at].token
    }

    fn position(&self) -> Position {
        self.tokens[self.at].position
    }

    fn keyword(&mut self, word: &'static str) -> bool {
        let is_here = *self.peek() == Token::Keyword(word);
        self.at += usize::from(is_here);
        is_here
    }

    fn symbol(&mut self, symbol: &'static str) -> bool {
        let is_here = *self.peek() == Token::Symbol(symbol);
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

fn unknown_function(name: &str, position: Position) -> RuleError {
    if let Some(reason) = functions::absent(name) {
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
        "a function of docs/rules.md",
    );
    error.suggest(suggestion.map(|nearest| format!("did you mean {nearest}?")))
}

/// The key of a field without AS: its own path, or a made-up name that is the same for every message.
fn implied_target(value: &Expr, number: usize) -> Target {
    let (name, path) = match &value.form {
        Form::Variable(variable) => (variable.name.clone(), variable.path.clone()),
        Form::Slice { array, .. } => match &array.form {
            Form::Variable(variable) => (variable.name.clone(), variable.path.clone()),
            _ => (Text::from(format!("_v_slice_{number}")), Vec::new()),
        },
        Form::Const(Value::Text(text)) => (text.clone(), Vec::new()),
        other => (Text::from(format!("_v_{}_{number}", made_up_name(other))), Vec::new()),
    };
    Target {
        position: value.position,
        name,
        path,
        is_explicit: false,
    }
}

fn made_up_name(form: &Form) -> String {
    match form {
        Form::Call { function, .. } => format!("fun_{}", function.name),
        Form::Arithmetic { operator, .. } => format!("op_{}", operator.symbol()),
        Form::List(_) => "list".to_owned(),
        Form::Range { .. } => "range".to_owned(),
        Form::Case { .. } => "case".to_owned(),
        Form::Const(_) => "const".to_owned(),
        _ => "op".to_owned(),
    }
}
