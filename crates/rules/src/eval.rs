//! Evaluation of a compiled rule for one event.
//!
//! Each thread has an `Evaluator`. For each event it creates a `MessageEvaluation`, and any number of rules can run on
//! it. The payload is parsed once, when the first rule reads one of its fields; a parse error is also stored. Names are
//! looked up first in the fields computed so far, then in the fields of FOREACH, then in the event.
//!
//! If WHERE names no field of SELECT, it is evaluated first. EMQX always computes the fields first. The outputs are the
//! same, with one difference: if the message does not match WHERE and a field has an error, we count "not matched" and
//! EMQX counts "failed".

use rule_values::{FunctionError, Map, Value, json::Tape};

use crate::access::{self, ResolvedStep};
use crate::compare::{self, compare};
use crate::context::{EvaluationCache, EvaluationContext};
use crate::error::{EvalError, TextPosition};
use crate::event::{Column, Environment, RuleEvent};
use crate::expr::{Expr, ExprKind, OutputField, OutputPath, PathStep, Variable};
use crate::functions::{FunctionCall, arithmetic};
use crate::rule::{Foreach, Rule, RuleBody};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvalOutcome {
    /// Number of outputs, at least one.
    Passed(usize),
    /// WHERE was false, or FOREACH had no elements.
    NotMatched,
}

/// Memory that is reused for the next message.
#[derive(Debug, Default)]
pub struct Evaluator {
    cache: EvaluationCache,
}

/// Resources that the last evaluation used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsedResources {
    /// `Limits::steps_max` defines a step.
    pub steps: u64,
}

/// One event during the evaluation of its rules.
pub struct MessageEvaluation<'a> {
    cache: &'a mut EvaluationCache,
    event: &'a dyn RuleEvent,
    environment: &'a mut dyn Environment,
    used: UsedResources,
}

impl Evaluator {
    pub fn new() -> Evaluator {
        Evaluator::default()
    }

    pub fn message<'a>(
        &'a mut self,
        event: &'a dyn RuleEvent,
        environment: &'a mut dyn Environment,
    ) -> MessageEvaluation<'a> {
        self.cache.begin_event();
        MessageEvaluation {
            cache: &mut self.cache,
            event,
            environment,
            used: UsedResources::default(),
        }
    }
}

impl MessageEvaluation<'_> {
    /// Returns the resources that the last `run` used.
    pub fn used(&self) -> UsedResources {
        self.used
    }

    /// Appends the outputs. After an error, nothing is appended.
    pub fn run(&mut self, rule: &Rule, out: &mut Vec<Map>) -> Result<EvalOutcome, EvalError> {
        let start = out.len();
        let mut run = RuleEvaluation {
            rule,
            context: EvaluationContext::new(rule.id(), &rule.limits, self.event, self.environment, self.cache),
            selected: Map::new(),
            scope: Map::new(),
            looked_up: Vec::new(),
            columns: None,
        };
        let result = run.run(out);
        self.used.steps = rule.limits.steps_max - run.context.budget.steps();
        if result.is_err() {
            out.truncate(start);
        }
        result
    }
}

struct RuleEvaluation<'a> {
    rule: &'a Rule,
    context: EvaluationContext<'a>,
    /// Fields of this clause that are already computed.
    selected: Map,
    /// The fields of FOREACH and the current element.
    scope: Map,
    /// Values of variables that do not depend on the element, indexed by `Variable::slot`.
    looked_up: Vec<Option<Value>>,
    /// The columns that `*` stands for in FOREACH.
    columns: Option<Map>,
}

impl RuleEvaluation<'_> {
    fn run(&mut self, out: &mut Vec<Map>) -> Result<EvalOutcome, EvalError> {
        let rule = self.rule;
        if rule.is_condition_first && !self.matches(rule.condition.as_ref())? {
            return Ok(EvalOutcome::NotMatched);
        }
        match &rule.body {
            RuleBody::Select(fields) => self.select(fields, out),
            RuleBody::Foreach(foreach) => self.foreach(foreach, out),
        }
    }

    fn select(&mut self, fields: &[OutputField], out: &mut Vec<Map>) -> Result<EvalOutcome, EvalError> {
        self.selected = Map::with_capacity(fields.len());
        self.fields(fields)?;
        if !self.rule.is_condition_first {
            self.scope = std::mem::take(&mut self.selected);
            if !self.matches(self.rule.condition.as_ref())? {
                return Ok(EvalOutcome::NotMatched);
            }
            self.selected = std::mem::take(&mut self.scope);
        }
        let output = std::mem::take(&mut self.selected);
        let place =
            |fault: FunctionError| EvalError::at(fields.last().map(OutputField::position).unwrap_or_default(), fault);
        self.context.budget.charge_output(&output).map_err(place)?;
        out.push(output);
        Ok(EvalOutcome::Passed(1))
    }

    fn foreach(&mut self, foreach: &Foreach, out: &mut Vec<Map>) -> Result<EvalOutcome, EvalError> {
        let rule = self.rule;
        let position = foreach.array.position;
        self.fields(&foreach.fields)?;
        let value = self.array_of(&foreach.array)?;
        self.put(&foreach.array_target, value.clone())?;
        self.scope = std::mem::take(&mut self.selected);
        if !rule.is_condition_first && !self.matches(rule.condition.as_ref())? {
            return Ok(EvalOutcome::NotMatched);
        }
        let Value::Array(elements) = value else {
            return Ok(EvalOutcome::NotMatched);
        };
        let mut columns = Map::new();
        let is_all = |field: &OutputField| matches!(field, OutputField::All(_));
        if foreach.each.as_ref().is_none_or(|each| each.iter().any(is_all)) {
            self.add_columns(&mut columns)
                .map_err(|fault| EvalError::at(position, fault))?;
        }
        self.columns = Some(columns.clone());
        let start = out.len();
        for element in elements.iter() {
            self.scope.insert(foreach.item.clone(), element.clone());
            if !self.matches(foreach.incase.as_ref())? {
                continue;
            }
            if out.len() - start >= rule.limits.outputs_max {
                let fault = FunctionError::limit(format!("FOREACH has more than {} outputs", rule.limits.outputs_max));
                return Err(EvalError::at(position, fault));
            }
            let output = match &foreach.each {
                Some(each) => {
                    self.fields(each)?;
                    std::mem::take(&mut self.selected)
                }
                None => self.with_scope(&columns, position)?,
            };
            self.context
                .budget
                .charge_output(&output)
                .map_err(|fault| EvalError::at(position, fault))?;
            out.push(output);
        }
        Ok(if out.len() > start {
            EvalOutcome::Passed(out.len() - start)
        } else {
            EvalOutcome::NotMatched
        })
    }

    /// If an array is expected, the complete payload is parsed as JSON.
    fn array_of(&mut self, array: &Expr) -> Result<Value, EvalError> {
        let value = self.eval(array)?;
        let is_payload = matches!(&array.kind, ExprKind::Variable(variable)
            if variable.path.is_empty() && variable.name.as_bytes() == b"payload");
        match value {
            Value::Text(text) if is_payload => self
                .context
                .decode_payload(&text)
                .map_err(|fault| EvalError::at(array.position, fault)),
            other => Ok(other),
        }
    }

    /// Returns the output of FOREACH without DO: the event, the fields and the element.
    fn with_scope(&mut self, columns: &Map, position: TextPosition) -> Result<Map, EvalError> {
        let mut output = columns.clone();
        for (name, value) in self.scope.iter() {
            output.insert(name.clone(), value.clone());
        }
        let size = 64 * output.len();
        self.context
            .budget
            .make(size)
            .map_err(|fault| EvalError::at(position, fault))?;
        Ok(output)
    }

    fn add_columns(&mut self, output: &mut Map) -> Result<(), FunctionError> {
        if let Some(columns) = &self.columns {
            self.context.budget.make(64 * columns.len())?;
            for (name, value) in columns.iter() {
                output.insert(name.clone(), value.clone());
            }
            return Ok(());
        }
        for column in self.context.event.kind().columns() {
            let value = self.context.charged_column(column)?;
            output.insert(column.name().into(), value);
        }
        Ok(())
    }

    fn matches(&mut self, condition: Option<&Expr>) -> Result<bool, EvalError> {
        condition.map_or(Ok(true), |condition| self.is_true(condition))
    }

    /// Evaluates a condition. A missing value is false.
    fn is_true(&mut self, condition: &Expr) -> Result<bool, EvalError> {
        match self.eval(condition)? {
            Value::Bool(truth) => Ok(truth),
            Value::Undefined | Value::Null => Ok(false),
            other => {
                let message = format!("the condition is {}, not true or false", other.type_name());
                Err(EvalError::at(condition.position, FunctionError::from(message)))
            }
        }
    }

    fn fields(&mut self, fields: &[OutputField]) -> Result<(), EvalError> {
        for field in fields {
            match field {
                OutputField::All(position) => {
                    let mut selected = std::mem::take(&mut self.selected);
                    self.add_columns(&mut selected)
                        .map_err(|fault| EvalError::at(*position, fault))?;
                    self.selected = selected;
                }
                OutputField::Value { value, target } => {
                    let value = self.eval(value)?;
                    self.put(target, value)?;
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, target: &OutputPath, value: Value) -> Result<(), EvalError> {
        if target.path.is_empty() {
            self.selected.insert(target.name.clone(), value);
            return Ok(());
        }
        let place = |fault: FunctionError| EvalError::at(target.position, fault);
        let path = self.places(&target.path).map_err(place)?;
        self.context.budget.charge_steps(path.len() as u64).map_err(place)?;
        if target.name.as_bytes() == b"payload"
            && let Some(Value::Text(text)) = self.selected.get(b"payload").cloned()
        {
            let decoded = self.context.decode_payload(&text).map_err(place)?;
            self.selected.insert(target.name.clone(), decoded);
        }
        access::put(&mut self.selected, &target.name, &path, value);
        let whole = self.selected.get(&target.name).cloned().unwrap_or_default();
        self.context.budget.check_nesting(&whole, 0).map_err(place)
    }

    fn eval(&mut self, expr: &Expr) -> Result<Value, EvalError> {
        let place = |fault: FunctionError| EvalError::at(expr.position, fault);
        self.context.budget.charge_steps(1).map_err(place)?;
        match &expr.kind {
            ExprKind::Const(value) => Ok(value.clone()),
            ExprKind::Variable(variable) => self.variable(variable).map_err(place),
            ExprKind::List(items) => {
                let values = items.iter().map(|item| self.eval(item)).collect::<Result<_, _>>()?;
                let array = Value::array(values);
                self.context.budget.check_nesting(&array, 0).map_err(place)?;
                Ok(array)
            }
            ExprKind::Range { begin, end } => {
                let length = end.saturating_sub(*begin).clamp(0, 1 << 20) as usize;
                self.context.budget.make(length * 32).map_err(place)?;
                access::range(*begin, *end).map_err(place)
            }
            ExprKind::Slice { array, begin, end } => {
                let array = self.eval(array)?;
                let slice = access::slice(&array, *begin, *end).map_err(place)?;
                if let Value::Array(values) = &slice {
                    self.context.budget.make(values.len() * 32).map_err(place)?;
                }
                Ok(slice)
            }
            ExprKind::Plus(inner) => self.eval(inner),
            ExprKind::Negate(inner) => {
                let value = self.eval(inner)?;
                arithmetic::negate(&value).map_err(place)
            }
            ExprKind::Arithmetic { operator, left, right } => {
                let (left, right) = (self.eval(left)?, self.eval(right)?);
                arithmetic::apply(*operator, &left, &right, &mut self.context.budget).map_err(place)
            }
            ExprKind::Compare { operator, left, right } => {
                let (left, right) = (self.eval(left)?, self.eval(right)?);
                let compared = compare(*operator, &left, &right, &mut self.context.budget);
                compared.map(Value::Bool).map_err(place)
            }
            ExprKind::And(operands) => {
                for operand in operands {
                    if !self.is_true(operand)? {
                        return Ok(Value::Bool(false));
                    }
                }
                Ok(Value::Bool(true))
            }
            ExprKind::Or(operands) => {
                for operand in operands {
                    if self.is_true(operand)? {
                        return Ok(Value::Bool(true));
                    }
                }
                Ok(Value::Bool(false))
            }
            // As in EMQX, the negation of a missing value is also false.
            ExprKind::Not(inner) => match self.eval(inner)? {
                Value::Bool(truth) => Ok(Value::Bool(!truth)),
                Value::Undefined | Value::Null => Ok(Value::Bool(false)),
                other => {
                    let message = format!("NOT requires true or false, not {}", other.type_name());
                    Err(place(FunctionError::from(message)))
                }
            },
            ExprKind::In { item, list, is_negated } => {
                let item = self.eval(item)?;
                let mut is_member = false;
                for other in list {
                    let other = self.eval(other)?;
                    is_member |= compare::is_same(&other, &item, &mut self.context.budget).map_err(place)?;
                }
                Ok(Value::Bool(is_member != *is_negated))
            }
            ExprKind::Case {
                subject,
                branches,
                default: otherwise,
            } => self.case(subject.as_deref(), branches, otherwise.as_deref()),
            ExprKind::Call { .. } => self.call(expr),
        }
    }

    fn case(
        &mut self,
        subject: Option<&Expr>,
        branches: &[(Expr, Expr)],
        otherwise: Option<&Expr>,
    ) -> Result<Value, EvalError> {
        let subject = subject.map(|subject| self.eval(subject)).transpose()?;
        for (condition, value) in branches {
            let is_taken = match &subject {
                Some(subject) => {
                    let value = self.eval(condition)?;
                    let is_same = compare::is_same(&value, subject, &mut self.context.budget);
                    is_same.map_err(|fault| EvalError::at(condition.position, fault))?
                }
                None => self.is_true(condition)?,
            };
            if is_taken {
                return self.eval(value);
            }
        }
        otherwise.map_or(Ok(Value::Undefined), |otherwise| self.eval(otherwise))
    }

    fn call(&mut self, expr: &Expr) -> Result<Value, EvalError> {
        const FEW: usize = 4;
        let ExprKind::Call {
            function,
            arguments,
            constant,
        } = &expr.kind
        else {
            return Ok(Value::Undefined);
        };
        let mut few: [Value; FEW] = [const { Value::Undefined }; FEW];
        let many: Vec<Value>;
        let values = if arguments.len() <= FEW {
            for (value, argument) in few.iter_mut().zip(arguments) {
                *value = self.eval(argument)?;
            }
            &few[..arguments.len()]
        } else {
            many = arguments
                .iter()
                .map(|argument| self.eval(argument))
                .collect::<Result<_, _>>()?;
            &many
        };
        let place = |fault: FunctionError| EvalError::at(expr.position, fault);
        // Nearly every function reads its arguments. Functions charge for other work themselves.
        for value in values {
            if let Value::Text(text) = value {
                self.context.budget.read(text.len()).map_err(place)?;
            }
        }
        let mut call = FunctionCall {
            function,
            arguments: values,
            constant: constant.as_deref(),
            run: &mut self.context,
        };
        (function.run)(&mut call).map_err(place)
    }

    /// Looks up a variable. If it does not depend on the FOREACH element, the value is cached.
    fn variable(&mut self, variable: &Variable) -> Result<Value, FunctionError> {
        let Some(slot) = variable.slot else {
            return self.look_up(variable);
        };
        if let Some(Some(value)) = self.looked_up.get(slot) {
            return Ok(value.clone());
        }
        let value = self.look_up(variable)?;
        if self.looked_up.len() <= slot {
            self.looked_up.resize(slot + 1, None);
        }
        self.looked_up[slot] = Some(value.clone());
        Ok(value)
    }

    fn look_up(&mut self, variable: &Variable) -> Result<Value, FunctionError> {
        if variable.is_selected {
            let found = self.in_map(variable, false)?;
            if let Some(value) = found.filter(|value| *value != Value::Undefined) {
                return Ok(value);
            }
        }
        if variable.is_in_scope
            && let Some(value) = self.in_map(variable, true)?
        {
            return Ok(value);
        }
        match variable.column {
            None => Ok(Value::Undefined),
            Some(Column::Payload) if !variable.path.is_empty() => self.payload_path(&variable.path),
            Some(column) if variable.path.is_empty() => self.context.charged_column(column),
            Some(column) => {
                let path = self.places(&variable.path)?;
                let value = self.context.charged_column(column)?;
                self.context.get(&value, &path)
            }
        }
    }

    /// Returns `None` if the map does not contain the name.
    fn in_map(&mut self, variable: &Variable, in_scope: bool) -> Result<Option<Value>, FunctionError> {
        let map = if in_scope { &self.scope } else { &self.selected };
        let Some(value) = map.get(&variable.name) else {
            return Ok(None);
        };
        if variable.path.is_empty() {
            return Ok(Some(value.clone()));
        }
        let mut value = value.clone();
        let path = self.places(&variable.path)?;
        if let (Value::Text(text), b"payload") = (&value, variable.name.as_bytes()) {
            value = self.context.decode_payload(&text.clone())?;
        }
        self.context.get(&value, &path).map(Some)
    }

    /// Evaluates the names and indexes in a path.
    fn places(&mut self, path: &[PathStep]) -> Result<Vec<ResolvedStep>, FunctionError> {
        path.iter().map(|step| self.place(step)).collect()
    }

    fn place(&mut self, step: &PathStep) -> Result<ResolvedStep, FunctionError> {
        Ok(match step {
            PathStep::Key(key) => ResolvedStep::Key(key.clone()),
            PathStep::Index(index) => ResolvedStep::Index((*index).into()),
            PathStep::Head => ResolvedStep::Head,
            PathStep::Tail => ResolvedStep::Tail,
            PathStep::Variable(variable, _) => match self.variable(variable)? {
                Value::Int(index) => ResolvedStep::Index(index),
                Value::Text(key) => ResolvedStep::Key(key),
                _ => ResolvedStep::Invalid,
            },
        })
    }

    /// Returns a field of the payload from the tape, without converting the rest of the payload to values.
    fn payload_path(&mut self, path: &[PathStep]) -> Result<Value, FunctionError> {
        // Another source of the rule may have a payload.
        if !self.context.event.kind().has(Column::Payload) {
            return Ok(Value::Undefined);
        }
        self.context.read_payload()?;
        let mut node = Tape::ROOT;
        for (i, step) in path.iter().enumerate() {
            if let Some(text) = self.context.payload_text(node)? {
                let rest = self.places(&path[i..])?;
                return self.context.get(&text, &rest);
            }
            let child = match step {
                PathStep::Key(key) => self.context.child_by_key(node, key)?,
                step => {
                    let place = self.place(step)?;
                    self.context.child(node, &place)?
                }
            };
            match child {
                Some(child) => node = child,
                None => return Ok(Value::Undefined),
            }
        }
        self.context.payload_value(node)
    }
}
