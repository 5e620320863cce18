//! Second half of compiling: names to columns and earlier fields, and what can be known of types without a message.
//!
//! An error here is certain: an expression that no message can give a value for. What depends on the payload is left to
//! the evaluation.

use std::collections::HashSet;

use regex::bytes::{Regex, RegexBuilder};

use crate::error::{Position, RuleError, nearest};
use crate::event::{Column, EventKind};
use crate::expr::{Arithmetic, Comparison, Expr, Field, Form, Step, Target, Variable};
use crate::functions::{Compiled, Function};
use crate::jq::Program;
use crate::kinds::Kinds;
use crate::number;
use crate::rule::{Body, Foreach, Limits, UnknownColumns, columns_of};
use crate::text::Text;
use crate::value::Value;

pub(crate) struct Resolver<'a> {
    columns: HashSet<Column>,
    /// Fields of the clause that is being resolved.
    selected: HashSet<Text>,
    /// Fields of FOREACH and the element; for WHERE, the fields of SELECT.
    scope: HashSet<Text>,
    has_state: bool,
    limits: &'a Limits,
}

impl Resolver<'_> {
    pub fn new(kinds: Vec<EventKind>, limits: &Limits) -> Resolver<'_> {
        Resolver {
            columns: columns_of(&kinds).collect(),
            selected: HashSet::new(),
            scope: HashSet::new(),
            has_state: false,
            limits,
        }
    }

    pub fn select(&mut self, mut fields: Vec<Field>) -> Result<Body, RuleError> {
        self.fields(&mut fields)?;
        self.scope = std::mem::take(&mut self.selected);
        Ok(Body::Select(fields))
    }

    pub fn foreach(
        &mut self,
        mut fields: Vec<Field>,
        mut each: Option<Vec<Field>>,
        mut incase: Option<Expr>,
    ) -> Result<Body, RuleError> {
        let (mut array, array_target) = match fields.pop() {
            Some(Field::Value { value, target }) => (value, target),
            Some(Field::All(position)) => return Err(RuleError::new(position, "*", "an array behind FOREACH")),
            None => {
                return Err(RuleError::new(
                    Position::default(),
                    "nothing",
                    "an array behind FOREACH",
                ));
            }
        };
        self.fields(&mut fields)?;
        let kinds = self.expr(&mut array)?;
        self.array(&array, kinds)?;
        if array_target.is_explicit && !array_target.path.is_empty() {
            let found = "a path";
            return Err(RuleError::new(
                array_target.position,
                found,
                "a plain name for the elements",
            ));
        }
        self.note(&array_target, &array);
        let item = if array_target.is_explicit {
            array_target.name.clone()
        } else {
            Text::from("item")
        };
        let selected = std::mem::take(&mut self.selected);
        self.scope = selected.clone();
        self.scope.insert(item.clone());
        if let Some(incase) = &mut incase {
            self.condition(incase)?;
        }
        if let Some(each) = &mut each {
            self.fields(each)?;
        }
        self.selected.clear();
        self.scope = selected;
        Ok(Body::Foreach(Box::new(Foreach {
            fields,
            array,
            array_target,
            item,
            each,
            incase,
        })))
    }

    /// Whether WHERE has to wait for the fields: it names one, or functions leave something for later ones.
    pub fn needs_fields_first(&self, condition: Option<&Expr>) -> bool {
        let mut names_field = false;
        if let Some(condition) = condition {
            condition.walk(&mut |expr| {
                if let Form::Variable(variable) = &expr.form {
                    names_field |= variable.is_in_scope || variable.path.iter().any(is_dynamic);
                }
            });
        }
        names_field || self.has_state
    }

    fn fields(&mut self, fields: &mut [Field]) -> Result<(), RuleError> {
        for field in fields {
            if let Field::Value { value, target } = field {
                self.expr(value)?;
                self.steps(&mut target.path, false)?;
                self.note(target, value);
            }
        }
        Ok(())
    }

    /// From here on the name of the field means the field, unless it is the column of that name anyway.
    fn note(&mut self, target: &Target, value: &Expr) {
        let is_same = matches!(&value.form, Form::Variable(variable)
            if variable.path.is_empty() && target.path.is_empty() && variable.name == target.name
                && !variable.is_selected && !variable.is_in_scope);
        if !is_same {
            self.selected.insert(target.name.clone());
        }
    }

    /// A condition of WHERE, INCASE, WHEN, AND, OR or NOT.
    pub fn condition(&mut self, expr: &mut Expr) -> Result<(), RuleError> {
        let kinds = self.expr(expr)?;
        if !kinds.meets(Kinds::BOOL | Kinds::UNDEFINED | Kinds::NULL) {
            return Err(RuleError::new(expr.position, kinds.to_string(), "a condition"));
        }
        Ok(())
    }

    fn array(&self, expr: &Expr, kinds: Kinds) -> Result<(), RuleError> {
        let is_payload = matches!(&expr.form, Form::Variable(variable)
            if variable.column == Some(Column::Payload) && variable.path.is_empty());
        if !kinds.meets(Kinds::ARRAY) && !is_payload {
            return Err(RuleError::new(
                expr.position,
                kinds.to_string(),
                "an array behind FOREACH",
            ));
        }
        Ok(())
    }

    /// Resolves the expression and says what it can be.
    fn expr(&mut self, expr: &mut Expr) -> Result<Kinds, RuleError> {
        let position = expr.position;
        match &mut expr.form {
            Form::Const(value) => Ok(Kinds::of(value)),
            Form::Variable(variable) => self.variable(variable, position),
            Form::Range { .. } => Ok(Kinds::ARRAY),
            Form::List(_) => {
                self.children(expr)?;
                Ok(Kinds::ARRAY)
            }
            Form::Slice { array, .. } => {
                let kinds = self.expr(array)?;
                require(position, kinds, Kinds::ARRAY, "an array before a range")?;
                Ok(Kinds::ARRAY)
            }
            Form::Plus(inner) => self.expr(inner),
            Form::Negate(inner) => {
                let kinds = self.expr(inner)?;
                require(inner.position, kinds, Kinds::NUMBER, "a number behind -")?;
                Ok(Kinds::NUMBER)
            }
            Form::Arithmetic { operator, left, right } => {
                let (operator, left, right) = (*operator, self.expr(left)?, self.expr(right)?);
                arithmetic(position, operator, left, right)
            }
            Form::Compare { operator, left, right } => {
                let kinds = (self.expr(left)?, self.expr(right)?);
                comparison(position, *operator, (left, kinds.0), (right, kinds.1))?;
                Ok(Kinds::BOOL)
            }
            Form::And(operands) | Form::Or(operands) => {
                operands.iter_mut().try_for_each(|operand| self.condition(operand))?;
                Ok(Kinds::BOOL)
            }
            Form::Not(inner) => {
                self.condition(inner)?;
                Ok(Kinds::BOOL)
            }
            Form::In { .. } => {
                self.children(expr)?;
                Ok(Kinds::BOOL)
            }
            Form::Case { .. } => self.case(expr),
            Form::Call { .. } => self.call(expr),
        }
    }

    fn children(&mut self, expr: &mut Expr) -> Result<(), RuleError> {
        expr.form
            .children_mut()
            .into_iter()
            .try_for_each(|child| self.expr(child).map(drop))
    }

    fn case(&mut self, expr: &mut Expr) -> Result<Kinds, RuleError> {
        let Form::Case {
            subject,
            branches,
            otherwise,
        } = &mut expr.form
        else {
            return Ok(Kinds::ANY);
        };
        let has_subject = subject.is_some();
        if let Some(subject) = subject {
            self.expr(subject)?;
        }
        let mut kinds = match otherwise {
            Some(otherwise) => self.expr(otherwise)?,
            None => Kinds::UNDEFINED,
        };
        for (condition, value) in branches {
            if has_subject {
                self.expr(condition)?;
            } else {
                self.condition(condition)?;
            }
            kinds = kinds | self.expr(value)?;
        }
        Ok(kinds)
    }

    fn call(&mut self, expr: &mut Expr) -> Result<Kinds, RuleError> {
        let Form::Call {
            function,
            arguments,
            constant,
        } = &mut expr.form
        else {
            return Ok(Kinds::ANY);
        };
        for (index, argument) in arguments.iter_mut().enumerate() {
            let kinds = self.expr(argument)?;
            let accepted = function.parameter_kinds(index);
            if !kinds.meets(accepted) {
                let expected = format!("{accepted} as argument {} of {}", index + 1, function.signature());
                return Err(RuleError::new(argument.position, kinds.to_string(), expected));
            }
        }
        self.has_state |= function.has_state;
        let at = usize::from(function.takes_regex);
        if let Some(Expr {
            form: Form::Const(Value::Text(text)),
            position,
            ..
        }) = arguments.get(at)
        {
            let compiled = self.compiled(function, text);
            let error = |message: String| {
                let expected = match function.takes_regex {
                    true => format!("a regular expression ({message})"),
                    false => format!("a jq program ({message})"),
                };
                RuleError::new(*position, text.to_string(), expected)
            };
            *constant = compiled.map_err(error)?.map(Box::new);
        }
        Ok(function.returns)
    }

    /// A constant argument of a function that needs it in another form.
    fn compiled(&self, function: &Function, text: &Text) -> Result<Option<Compiled>, String> {
        if function.takes_regex {
            let regex = compile_regex(text, self.limits.regex_bytes_max)?;
            return Ok(Some(Compiled::Regex(regex)));
        }
        match function.takes_program {
            true => Ok(Some(Compiled::Program(Program::compile(text)?))),
            false => Ok(None),
        }
    }

    fn variable(&mut self, variable: &mut Variable, position: Position) -> Result<Kinds, RuleError> {
        let is_payload = variable.name.as_bytes() == b"payload";
        self.steps(&mut variable.path, is_payload)?;
        let name = variable.name.as_str().unwrap_or_default();
        variable.column = Column::from_name(name).filter(|column| self.columns.contains(column));
        variable.is_selected = self.selected.contains(&variable.name);
        variable.is_in_scope = self.scope.contains(&variable.name);
        if variable.is_selected || variable.is_in_scope {
            return Ok(Kinds::ANY);
        }
        match variable.column {
            Some(_) if !variable.path.is_empty() => Ok(Kinds::ANY),
            Some(column) => Ok(column.kinds()),
            None if matches!(name, "null" | "undefined") => Ok(Kinds::UNDEFINED),
            None if self.limits.unknown_columns == UnknownColumns::Undefined => Ok(Kinds::UNDEFINED),
            None => Err(self.unknown(name, position)),
        }
    }

    fn unknown(&self, name: &str, position: Position) -> RuleError {
        let fields = self.selected.iter().chain(&self.scope).filter_map(Text::as_str);
        let names = self.columns.iter().map(|column| column.name()).chain(fields);
        let suggestion = match nearest(name, names) {
            Some(nearest) => format!("did you mean {nearest}?"),
            None => format!("fields of the payload are payload.{name}, a string is '{name}'"),
        };
        let expected = "a column of the events in FROM or an earlier field";
        RuleError::new(position, format!("unknown column {name:?}"), expected).suggest(Some(suggestion))
    }

    /// Names in brackets. In a path of the payload, what is no column is looked up in the payload.
    fn steps(&mut self, path: &mut [Step], is_payload: bool) -> Result<(), RuleError> {
        for step in path {
            let Step::By(variable, position) = step else {
                continue;
            };
            let is_known = self.selected.contains(&variable.name)
                || self.scope.contains(&variable.name)
                || variable.name.as_str().and_then(Column::from_name).is_some();
            if is_payload && !is_known {
                let key = Step::Key(std::mem::replace(&mut variable.name, Text::from("payload")));
                variable.path.insert(0, key);
            }
            self.variable(variable, *position)?;
        }
        Ok(())
    }
}

fn is_dynamic(step: &Step) -> bool {
    matches!(step, Step::By(variable, _) if variable.is_in_scope || variable.path.iter().any(is_dynamic))
}

/// For patterns in the text of a rule, and those that come with a message. Bytes, not characters, as in EMQX.
pub(crate) fn compile_regex(pattern: &[u8], bytes_max: usize) -> Result<Regex, String> {
    let pattern = std::str::from_utf8(pattern).map_err(|_| "not UTF-8".to_owned())?;
    RegexBuilder::new(pattern)
        .unicode(false)
        .size_limit(bytes_max)
        .dfa_size_limit(bytes_max)
        .nest_limit(32)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(limit) => format!("it needs more than {limit} bytes when compiled"),
            other => other
                .to_string()
                .lines()
                .last()
                .unwrap_or("it is not valid")
                .trim()
                .to_owned(),
        })
}

fn require(position: Position, kinds: Kinds, accepted: Kinds, expected: &str) -> Result<(), RuleError> {
    if kinds.meets(accepted) {
        Ok(())
    } else {
        Err(RuleError::new(position, kinds.to_string(), expected))
    }
}

fn arithmetic(position: Position, operator: Arithmetic, left: Kinds, right: Kinds) -> Result<Kinds, RuleError> {
    let may_join = operator == Arithmetic::Add && (left | right).meets(Kinds::TEXT);
    let accepted = match operator {
        Arithmetic::IntegerDivide | Arithmetic::Modulo => Kinds::INT,
        _ => Kinds::NUMBER,
    };
    if !may_join {
        for (kinds, side) in [(left, "left"), (right, "right")] {
            let expected = format!("{accepted} on the {side} of {}", operator.symbol());
            require(position, kinds, accepted, &expected)?;
        }
    }
    Ok(match operator {
        Arithmetic::Add if may_join => Kinds::NUMBER | Kinds::TEXT,
        Arithmetic::Divide => Kinds::FLOAT,
        _ => accepted,
    })
}

fn comparison(
    position: Position,
    operator: Comparison,
    left: (&Expr, Kinds),
    right: (&Expr, Kinds),
) -> Result<(), RuleError> {
    if operator == Comparison::MatchesFilter {
        require(position, left.1, Kinds::TEXT, "a topic on the left of =~")?;
        return require(position, right.1, Kinds::TEXT, "a topic filter on the right of =~");
    }
    for ((text, _), (_, other)) in [(left, right), (right, left)] {
        let Form::Const(Value::Text(word)) = &text.form else {
            continue;
        };
        let is_number = number::parse_integer(word).is_some() || number::parse_float(word).is_some();
        // Nothing but a number stands on the other side, and this text is none.
        if !is_number
            && !other.meets(Kinds::TEXT | Kinds::BOOL | Kinds::NULL | Kinds::ARRAY | Kinds::MAP)
            && other.meets(Kinds::NUMBER)
        {
            let found = format!("'{word}'");
            return Err(RuleError::new(
                text.position,
                found,
                "a number, as the other side is one",
            ));
        }
    }
    Ok(())
}
