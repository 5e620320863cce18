//! Second half of compiling: resolves names to columns and earlier fields, and checks the types that are known without
//! a message.
//!
//! An error here is certain: no message can give a value for the expression. Everything that depends on the payload is
//! checked during evaluation.

use std::collections::HashSet;

use rule_values::{RegexPattern, Text, Value, nearest, number};

use crate::compare::ComparisonOperator;
use crate::error::{RuleError, TextPosition};
use crate::event::{Column, EventKind};
use crate::expr::{Arithmetic, Expr, ExprKind, OutputField, OutputPath, PathStep, Variable};
use crate::functions::{CompiledArgument, Function};
use crate::kinds::Kinds;
use crate::limits::{RuleLimits, UnknownColumns};
use crate::rule::{Foreach, RuleBody, columns_of};

pub(crate) struct NameResolver<'a> {
    columns: HashSet<Column>,
    /// Fields of the clause that is being resolved.
    selected: HashSet<Text>,
    /// Fields of FOREACH and the element; for WHERE, the fields of SELECT.
    scope: HashSet<Text>,
    /// The element, in INCASE and DO.
    item: Option<Text>,
    /// Number of variables that have the same value for every element.
    slots: usize,
    has_state: bool,
    limits: &'a RuleLimits,
}

impl NameResolver<'_> {
    pub fn new(kinds: Vec<EventKind>, limits: &RuleLimits) -> NameResolver<'_> {
        NameResolver {
            columns: columns_of(&kinds).collect(),
            selected: HashSet::new(),
            scope: HashSet::new(),
            item: None,
            slots: 0,
            has_state: false,
            limits,
        }
    }

    pub fn select(&mut self, mut fields: Vec<OutputField>) -> Result<RuleBody, RuleError> {
        self.fields(&mut fields)?;
        self.scope = std::mem::take(&mut self.selected);
        Ok(RuleBody::Select(fields))
    }

    pub fn foreach(
        &mut self,
        mut fields: Vec<OutputField>,
        mut each: Option<Vec<OutputField>>,
        mut incase: Option<Expr>,
    ) -> Result<RuleBody, RuleError> {
        let (mut array, array_target) = match fields.pop() {
            Some(OutputField::Value { value, target }) => (value, target),
            Some(OutputField::All(position)) => return Err(RuleError::new(position, "*", "an array after FOREACH")),
            None => {
                return Err(RuleError::new(
                    TextPosition::default(),
                    "nothing",
                    "an array after FOREACH",
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
        self.declare(&array_target, &array);
        let item = if array_target.is_explicit {
            array_target.name.clone()
        } else {
            Text::from("item")
        };
        let selected = std::mem::take(&mut self.selected);
        self.scope = selected.clone();
        self.scope.insert(item.clone());
        self.item = Some(item.clone());
        if let Some(incase) = &mut incase {
            self.condition(incase)?;
        }
        if let Some(each) = &mut each {
            self.fields(each)?;
        }
        self.item = None;
        self.selected.clear();
        self.scope = selected;
        Ok(RuleBody::Foreach(Box::new(Foreach {
            fields,
            array,
            array_target,
            item,
            each,
            incase,
        })))
    }

    /// Returns whether WHERE must be evaluated after the fields: it names one of them, or a function stores a value for
    /// later calls.
    pub fn needs_fields_first(&self, condition: Option<&Expr>) -> bool {
        let mut names_field = false;
        if let Some(condition) = condition {
            condition.walk(&mut |expr| {
                if let ExprKind::Variable(variable) = &expr.kind {
                    names_field |= variable.is_in_scope || variable.path.iter().any(is_dynamic);
                }
            });
        }
        names_field || self.has_state
    }

    fn fields(&mut self, fields: &mut [OutputField]) -> Result<(), RuleError> {
        for field in fields {
            if let OutputField::Value { value, target } = field {
                self.expr(value)?;
                self.steps(&mut target.path, false)?;
                self.declare(target, value);
            }
        }
        Ok(())
    }

    /// From here on, the name refers to this field, unless the field is the column with the same name.
    fn declare(&mut self, target: &OutputPath, value: &Expr) {
        let is_same = matches!(&value.kind, ExprKind::Variable(variable)
            if variable.path.is_empty() && target.path.is_empty() && variable.name == target.name
                && !variable.is_selected && !variable.is_in_scope);
        if !is_same {
            self.selected.insert(target.name.clone());
        }
    }

    /// Resolves a condition of WHERE, INCASE, WHEN, AND, OR or NOT.
    pub fn condition(&mut self, expr: &mut Expr) -> Result<(), RuleError> {
        let kinds = self.expr(expr)?;
        if !kinds.overlaps(Kinds::BOOL | Kinds::UNDEFINED | Kinds::NULL) {
            return Err(RuleError::new(expr.position, kinds.to_string(), "a condition"));
        }
        Ok(())
    }

    fn array(&self, expr: &Expr, kinds: Kinds) -> Result<(), RuleError> {
        let is_payload = matches!(&expr.kind, ExprKind::Variable(variable)
            if variable.column == Some(Column::Payload) && variable.path.is_empty());
        if !kinds.overlaps(Kinds::ARRAY) && !is_payload {
            return Err(RuleError::new(
                expr.position,
                kinds.to_string(),
                "an array after FOREACH",
            ));
        }
        Ok(())
    }

    /// Resolves the expression and returns its possible types.
    fn expr(&mut self, expr: &mut Expr) -> Result<Kinds, RuleError> {
        let position = expr.position;
        match &mut expr.kind {
            ExprKind::Const(value) => Ok(Kinds::of(value)),
            ExprKind::Variable(variable) => self.variable(variable, position),
            ExprKind::Range { .. } => Ok(Kinds::ARRAY),
            ExprKind::List(_) => {
                self.children(expr)?;
                Ok(Kinds::ARRAY)
            }
            ExprKind::Slice { array, .. } => {
                let kinds = self.expr(array)?;
                require(position, kinds, Kinds::ARRAY, "an array before a range")?;
                Ok(Kinds::ARRAY)
            }
            ExprKind::Plus(inner) => self.expr(inner),
            ExprKind::Negate(inner) => {
                let kinds = self.expr(inner)?;
                require(inner.position, kinds, Kinds::NUMBER, "a number after -")?;
                Ok(Kinds::NUMBER)
            }
            ExprKind::Arithmetic { operator, left, right } => {
                let (operator, left, right) = (*operator, self.expr(left)?, self.expr(right)?);
                arithmetic(position, operator, left, right)
            }
            ExprKind::Compare { operator, left, right } => {
                let kinds = (self.expr(left)?, self.expr(right)?);
                comparison(position, *operator, (left, kinds.0), (right, kinds.1))?;
                Ok(Kinds::BOOL)
            }
            ExprKind::And(operands) | ExprKind::Or(operands) => {
                operands.iter_mut().try_for_each(|operand| self.condition(operand))?;
                Ok(Kinds::BOOL)
            }
            ExprKind::Not(inner) => {
                self.condition(inner)?;
                Ok(Kinds::BOOL)
            }
            ExprKind::In { .. } => {
                self.children(expr)?;
                Ok(Kinds::BOOL)
            }
            ExprKind::Case { .. } => self.case(expr),
            ExprKind::Call { .. } => self.call(expr),
        }
    }

    fn children(&mut self, expr: &mut Expr) -> Result<(), RuleError> {
        expr.kind
            .children_mut()
            .into_iter()
            .try_for_each(|child| self.expr(child).map(drop))
    }

    fn case(&mut self, expr: &mut Expr) -> Result<Kinds, RuleError> {
        let ExprKind::Case {
            subject,
            branches,
            default: otherwise,
        } = &mut expr.kind
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
        let ExprKind::Call {
            function,
            arguments,
            constant,
        } = &mut expr.kind
        else {
            return Ok(Kinds::ANY);
        };
        for (index, argument) in arguments.iter_mut().enumerate() {
            let kinds = self.expr(argument)?;
            let accepted = function.parameter_kinds(index);
            if !kinds.overlaps(accepted) {
                let expected = format!("{accepted} as argument {} of {}", index + 1, function.signature());
                return Err(RuleError::new(argument.position, kinds.to_string(), expected));
            }
        }
        self.has_state |= function.has_state;
        let at = usize::from(function.takes_regex);
        if let Some(Expr {
            kind: ExprKind::Const(Value::Text(text)),
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

    /// Compiles a constant pattern or jq program.
    fn compiled(&self, function: &Function, text: &Text) -> Result<Option<CompiledArgument>, String> {
        if function.takes_regex {
            let pattern = RegexPattern::compile(text, self.limits.regex_bytes_max)?;
            return Ok(Some(CompiledArgument::Pattern(Box::new(pattern))));
        }
        #[cfg(feature = "jq")]
        if function.takes_program {
            return Ok(Some(CompiledArgument::Program(jq::Program::compile(text)?)));
        }
        Ok(None)
    }

    fn variable(&mut self, variable: &mut Variable, position: TextPosition) -> Result<Kinds, RuleError> {
        let is_payload = variable.name.as_bytes() == b"payload";
        self.steps(&mut variable.path, is_payload)?;
        let name = variable.name.as_str().unwrap_or_default();
        variable.column = Column::from_name(name).filter(|column| self.columns.contains(column));
        variable.is_selected = self.selected.contains(&variable.name);
        variable.is_in_scope = self.scope.contains(&variable.name);
        if let Some(item) = &self.item
            && !depends_on(variable, item)
        {
            variable.slot = Some(self.slots);
            self.slots += 1;
        }
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

    fn unknown(&self, name: &str, position: TextPosition) -> RuleError {
        let fields = self.selected.iter().chain(&self.scope).filter_map(Text::as_str);
        let names = self.columns.iter().map(|column| column.name()).chain(fields);
        let suggestion = match nearest(name, names) {
            Some(nearest) => format!("did you mean {nearest}?"),
            None => format!("fields of the payload are payload.{name}, a string is '{name}'"),
        };
        let expected = "a column of the events in FROM or an earlier field";
        RuleError::new(position, format!("unknown column {name:?}"), expected).suggest(Some(suggestion))
    }

    /// Resolves names in brackets. In a path of the payload, a name that is not a column is read from the payload.
    fn steps(&mut self, path: &mut [PathStep], is_payload: bool) -> Result<(), RuleError> {
        for step in path {
            let PathStep::Variable(variable, position) = step else {
                continue;
            };
            let is_known = self.selected.contains(&variable.name)
                || self.scope.contains(&variable.name)
                || variable.name.as_str().and_then(Column::from_name).is_some();
            if is_payload && !is_known {
                let key = PathStep::Key(std::mem::replace(&mut variable.name, Text::from("payload")));
                variable.path.insert(0, key);
            }
            self.variable(variable, *position)?;
        }
        Ok(())
    }
}

/// Returns whether the variable can change with the next element: it is the element or an earlier field of DO.
fn depends_on(variable: &Variable, item: &Text) -> bool {
    let by_step = |step: &PathStep| matches!(step, PathStep::Variable(variable, _) if depends_on(variable, item));
    variable.is_selected || variable.name == *item || variable.path.iter().any(by_step)
}

fn is_dynamic(step: &PathStep) -> bool {
    matches!(step, PathStep::Variable(variable, _) if variable.is_in_scope || variable.path.iter().any(is_dynamic))
}

fn require(position: TextPosition, kinds: Kinds, accepted: Kinds, expected: &str) -> Result<(), RuleError> {
    if kinds.overlaps(accepted) {
        Ok(())
    } else {
        Err(RuleError::new(position, kinds.to_string(), expected))
    }
}

fn arithmetic(position: TextPosition, operator: Arithmetic, left: Kinds, right: Kinds) -> Result<Kinds, RuleError> {
    let may_join = operator == Arithmetic::Add && (left | right).overlaps(Kinds::TEXT);
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
    position: TextPosition,
    operator: ComparisonOperator,
    left: (&Expr, Kinds),
    right: (&Expr, Kinds),
) -> Result<(), RuleError> {
    if operator == ComparisonOperator::MatchesFilter {
        require(position, left.1, Kinds::TEXT, "a topic on the left of =~")?;
        return require(position, right.1, Kinds::TEXT, "a topic filter on the right of =~");
    }
    for ((text, _), (_, other)) in [(left, right), (right, left)] {
        let ExprKind::Const(Value::Text(word)) = &text.kind else {
            continue;
        };
        let is_number = number::parse_integer(word).is_some() || number::parse_float(word).is_some();
        // The other side can only be a number, and this text is not one.
        if !is_number
            && !other.overlaps(Kinds::TEXT | Kinds::BOOL | Kinds::NULL | Kinds::ARRAY | Kinds::MAP)
            && other.overlaps(Kinds::NUMBER)
        {
            let found = format!("'{word}'");
            return Err(RuleError::new(
                text.position,
                found,
                "a number, because the other side is a number",
            ));
        }
    }
    Ok(())
}
