//! Evaluation: a compiled rule against one event.
//!
//! An `Evaluator` is kept by a thread; for each event it gives a `Message`, in which any number of rules are run. The
//! payload is parsed when the first rule asks for a field of it, and once; so are its errors. Names are looked up in the
//! fields so far, then in those of FOREACH, then in the event.
//!
//! WHERE goes first when it names no field of SELECT: EMQX computes the fields first. The outputs are the same; an error in
//! a field of a message that WHERE refuses counts as not matched here, and as failed there.

use crate::access::{self, Place};
use crate::compare::compare;
use crate::error::{EvalError, Fault, Position};
use crate::event::{Column, Environment, Event};
use crate::expr::{Expr, Field, Form, Step, Target, Variable};
use crate::functions::{Call, ProgramCache, RegexCache, arithmetic};
use crate::json::{self, JsonError, Node, Tape};
use crate::rule::{Body, Foreach, Limits, Rule};
use crate::text::Text;
use crate::value::{Map, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// So many outputs, at least one.
    Passed(usize),
    /// WHERE refused, or FOREACH had no element.
    NotMatched,
}

/// Memory that is used again from message to message.
#[derive(Debug, Default)]
pub struct Evaluator {
    cache: Cache,
}

#[derive(Debug, Default)]
struct Cache {
    tape: Tape,
    payload: PayloadState,
    regexes: RegexCache,
    programs: ProgramCache,
}

/// What is known of the payload of the current message.
#[derive(Clone, Copy, Debug, Default)]
enum PayloadState {
    #[default]
    Unread,
    Json,
    NotJson(JsonError),
}

/// One event on its way through rules.
pub struct Message<'a> {
    cache: &'a mut Cache,
    event: &'a dyn Event,
    environment: &'a mut dyn Environment,
}

impl Evaluator {
    pub fn new() -> Evaluator {
        Evaluator::default()
    }

    pub fn message<'a>(&'a mut self, event: &'a dyn Event, environment: &'a mut dyn Environment) -> Message<'a> {
        self.cache.payload = PayloadState::Unread;
        Message {
            cache: &mut self.cache,
            event,
            environment,
        }
    }
}

impl Message<'_> {
    /// Appends the outputs; after an error there are none.
    pub fn run(&mut self, rule: &Rule, out: &mut Vec<Map>) -> Result<Outcome, EvalError> {
        let start = out.len();
        let mut run = Run {
            rule,
            event: self.event,
            environment: self.environment,
            cache: self.cache,
            selected: Map::new(),
            scope: Map::new(),
            budget: Budget::new(&rule.limits),
        };
        let result = run.run(out);
        if result.is_err() {
            out.truncate(start);
        }
        result
    }
}

/// What a rule may still use for this message.
pub(crate) struct Budget {
    steps: u64,
    bytes: usize,
}

impl Budget {
    fn new(limits: &Limits) -> Budget {
        Budget {
            steps: limits.steps_max,
            bytes: limits.result_bytes_max,
        }
    }

    pub fn step(&mut self, steps: u64) -> Result<(), Fault> {
        match self.steps.checked_sub(steps) {
            Some(left) => self.steps = left,
            None => return Err(Fault::from("the rule takes more steps than one message may")),
        }
        Ok(())
    }

    /// Steps and bytes.
    pub fn left(&self) -> (u64, usize) {
        (self.steps, self.bytes)
    }

    /// What something has used that was told what is left.
    pub fn use_up(&mut self, steps: u64, bytes: usize) -> Result<(), Fault> {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.step(steps)
    }

    /// Before so many bytes are made.
    pub fn make(&mut self, bytes: usize) -> Result<(), Fault> {
        match self.bytes.checked_sub(bytes) {
            Some(left) => self.bytes = left,
            None => return Err(Fault::from("the rule makes more bytes than one message may")),
        }
        self.step(bytes as u64 / 64)
    }
}

pub(crate) struct Run<'a> {
    pub rule: &'a Rule,
    pub event: &'a dyn Event,
    pub environment: &'a mut dyn Environment,
    cache: &'a mut Cache,
    /// Fields of the clause so far.
    selected: Map,
    /// Fields of FOREACH, and the element.
    scope: Map,
    pub budget: Budget,
}

impl Run<'_> {
    fn run(&mut self, out: &mut Vec<Map>) -> Result<Outcome, EvalError> {
        let rule = self.rule;
        if rule.is_condition_first && !self.holds(rule.condition.as_ref())? {
            return Ok(Outcome::NotMatched);
        }
        match &rule.body {
            Body::Select(fields) => self.select(fields, out),
            Body::Foreach(foreach) => self.foreach(foreach, out),
        }
    }

    fn select(&mut self, fields: &[Field], out: &mut Vec<Map>) -> Result<Outcome, EvalError> {
        self.selected = Map::with_capacity(fields.len());
        self.fields(fields)?;
        if !self.rule.is_condition_first {
            self.scope = std::mem::take(&mut self.selected);
            if !self.holds(self.rule.condition.as_ref())? {
                return Ok(Outcome::NotMatched);
            }
            self.selected = std::mem::take(&mut self.scope);
        }
        out.push(std::mem::take(&mut self.selected));
        Ok(Outcome::Passed(1))
    }

    fn foreach(&mut self, foreach: &Foreach, out: &mut Vec<Map>) -> Result<Outcome, EvalError> {
        let rule = self.rule;
        let position = foreach.array.position;
        self.fields(&foreach.fields)?;
        let value = self.array_of(&foreach.array)?;
        self.put(&foreach.array_target, value.clone())?;
        self.scope = std::mem::take(&mut self.selected);
        if !rule.is_condition_first && !self.holds(rule.condition.as_ref())? {
            return Ok(Outcome::NotMatched);
        }
        let Value::Array(elements) = value else {
            return Ok(Outcome::NotMatched);
        };
        let mut base = Map::new();
        if foreach.each.is_none() {
            self.add_columns(&mut base).map_err(|fault| fault.at(position))?;
        }
        let start = out.len();
        for element in elements.iter() {
            self.scope.insert(foreach.item.clone(), element.clone());
            if !self.holds(foreach.incase.as_ref())? {
                continue;
            }
            if out.len() - start >= rule.limits.outputs_max {
                let fault = Fault::from(format!("FOREACH has more than {} outputs", rule.limits.outputs_max));
                return Err(fault.at(position));
            }
            let output = match &foreach.each {
                Some(each) => {
                    self.fields(each)?;
                    std::mem::take(&mut self.selected)
                }
                None => self.with_scope(&base, position)?,
            };
            out.push(output);
        }
        Ok(if out.len() > start {
            Outcome::Passed(out.len() - start)
        } else {
            Outcome::NotMatched
        })
    }

    /// The whole payload is read as JSON where an array is wanted.
    fn array_of(&mut self, array: &Expr) -> Result<Value, EvalError> {
        let value = self.eval(array)?;
        let is_payload = matches!(&array.form, Form::Variable(variable)
            if variable.path.is_empty() && variable.name.as_bytes() == b"payload");
        match value {
            Value::Text(text) if is_payload => self.decode_payload(&text).map_err(|fault| fault.at(array.position)),
            other => Ok(other),
        }
    }

    /// The output of FOREACH without DO: the event, the fields and the element.
    fn with_scope(&mut self, columns: &Map, position: Position) -> Result<Map, EvalError> {
        let mut output = columns.clone();
        for (name, value) in self.scope.iter() {
            output.insert(name.clone(), value.clone());
        }
        let size = 64 * output.len();
        self.budget.make(size).map_err(|fault| fault.at(position))?;
        Ok(output)
    }

    fn add_columns(&mut self, output: &mut Map) -> Result<(), Fault> {
        for column in self.event.kind().columns() {
            let value = self.charged_column(column)?;
            output.insert(column.name().into(), value);
        }
        Ok(())
    }

    fn holds(&mut self, condition: Option<&Expr>) -> Result<bool, EvalError> {
        condition.map_or(Ok(true), |condition| self.truth(condition))
    }

    /// True and false are themselves; what does not exist is false.
    fn truth(&mut self, condition: &Expr) -> Result<bool, EvalError> {
        match self.eval(condition)? {
            Value::Bool(truth) => Ok(truth),
            Value::Undefined | Value::Null => Ok(false),
            other => {
                let message = format!("the condition is {}, not true or false", other.type_name());
                Err(Fault::from(message).at(condition.position))
            }
        }
    }

    fn fields(&mut self, fields: &[Field]) -> Result<(), EvalError> {
        for field in fields {
            match field {
                Field::All(position) => {
                    let mut selected = std::mem::take(&mut self.selected);
                    self.add_columns(&mut selected).map_err(|fault| fault.at(*position))?;
                    self.selected = selected;
                }
                Field::Value { value, target } => {
                    let value = self.eval(value)?;
                    self.put(target, value)?;
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, target: &Target, value: Value) -> Result<(), EvalError> {
        if target.path.is_empty() {
            self.selected.insert(target.name.clone(), value);
            return Ok(());
        }
        let place = |fault: Fault| fault.at(target.position);
        let path = self.places(&target.path).map_err(place)?;
        self.budget.step(path.len() as u64).map_err(place)?;
        if target.name.as_bytes() == b"payload"
            && let Some(Value::Text(text)) = self.selected.get(b"payload").cloned()
        {
            let decoded = self.decode_payload(&text).map_err(place)?;
            self.selected.insert(target.name.clone(), decoded);
        }
        access::put(&mut self.selected, &target.name, &path, value);
        let whole = self.selected.get(&target.name).cloned().unwrap_or_default();
        self.check_nesting(&whole).map_err(place)
    }

    /// Of a value that has been put together: later fields, and later messages, may put it into others again.
    pub fn check_nesting(&mut self, value: &Value) -> Result<(), Fault> {
        const NESTING_MAX: usize = 128;
        match value.count_within(NESTING_MAX) {
            Some(count) => self.budget.step(count / 16),
            None => Err(Fault::from(format!(
                "arrays and maps nest deeper than {NESTING_MAX} levels"
            ))),
        }
    }

    pub fn eval(&mut self, expr: &Expr) -> Result<Value, EvalError> {
        let place = |fault: Fault| fault.at(expr.position);
        self.budget.step(1).map_err(place)?;
        match &expr.form {
            Form::Const(value) => Ok(value.clone()),
            Form::Variable(variable) => self.variable(variable).map_err(place),
            Form::List(items) => {
                let values = items.iter().map(|item| self.eval(item)).collect::<Result<_, _>>()?;
                let array = Value::array(values);
                self.check_nesting(&array).map_err(place)?;
                Ok(array)
            }
            Form::Range { begin, end } => {
                let length = end.saturating_sub(*begin).clamp(0, 1 << 20) as usize;
                self.budget.make(length * 32).map_err(place)?;
                access::range(*begin, *end).map_err(place)
            }
            Form::Slice { array, begin, end } => {
                let array = self.eval(array)?;
                let slice = access::slice(&array, *begin, *end).map_err(place)?;
                if let Value::Array(values) = &slice {
                    self.budget.make(values.len() * 32).map_err(place)?;
                }
                Ok(slice)
            }
            Form::Plus(inner) => self.eval(inner),
            Form::Negate(inner) => {
                let value = self.eval(inner)?;
                arithmetic::negate(&value).map_err(place)
            }
            Form::Arithmetic { operator, left, right } => {
                let (left, right) = (self.eval(left)?, self.eval(right)?);
                arithmetic::apply(*operator, &left, &right, &mut self.budget).map_err(place)
            }
            Form::Compare { operator, left, right } => {
                let (left, right) = (self.eval(left)?, self.eval(right)?);
                compare(*operator, &left, &right).map(Value::Bool).map_err(place)
            }
            Form::And(operands) => {
                for operand in operands {
                    if !self.truth(operand)? {
                        return Ok(Value::Bool(false));
                    }
                }
                Ok(Value::Bool(true))
            }
            Form::Or(operands) => {
                for operand in operands {
                    if self.truth(operand)? {
                        return Ok(Value::Bool(true));
                    }
                }
                Ok(Value::Bool(false))
            }
            // What is neither true nor false is not true the other way round either.
            Form::Not(inner) => Ok(Value::Bool(self.eval(inner)? == Value::Bool(false))),
            Form::In { item, list, is_negated } => {
                let item = self.eval(item)?;
                let mut is_member = false;
                for other in list {
                    is_member |= self.eval(other)? == item;
                }
                Ok(Value::Bool(is_member != *is_negated))
            }
            Form::Case {
                subject,
                branches,
                otherwise,
            } => self.case(subject.as_deref(), branches, otherwise.as_deref()),
            Form::Call { .. } => self.call(expr),
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
                Some(subject) => self.eval(condition)? == *subject,
                None => self.truth(condition)?,
            };
            if is_taken {
                return self.eval(value);
            }
        }
        otherwise.map_or(Ok(Value::Undefined), |otherwise| self.eval(otherwise))
    }

    fn call(&mut self, expr: &Expr) -> Result<Value, EvalError> {
        const FEW: usize = 4;
        let Form::Call {
            function,
            arguments,
            constant,
        } = &expr.form
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
        let mut call = Call {
            function,
            arguments: values,
            constant: constant.as_deref(),
            run: self,
        };
        (function.run)(&mut call).map_err(|fault| fault.at(expr.position))
    }

    fn variable(&mut self, variable: &Variable) -> Result<Value, Fault> {
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
            Some(column) if variable.path.is_empty() => self.charged_column(column),
            Some(column) => {
                let path = self.places(&variable.path)?;
                let value = self.charged_column(column)?;
                self.get(&value, &path)
            }
        }
    }

    /// `None` when the map has no such name at all.
    fn in_map(&mut self, variable: &Variable, in_scope: bool) -> Result<Option<Value>, Fault> {
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
            value = self.decode_payload(&text.clone())?;
        }
        self.get(&value, &path).map(Some)
    }

    fn get(&mut self, value: &Value, path: &[Place]) -> Result<Value, Fault> {
        self.budget.step(path.len() as u64)?;
        if let Value::Text(text) = value {
            self.budget.make(text.len())?;
        }
        Ok(access::get(value, path, &self.rule.limits.json))
    }

    /// A field named `payload` that is a string.
    fn decode_payload(&mut self, text: &Text) -> Result<Value, Fault> {
        self.budget.make(text.len())?;
        json::decode(text, &self.rule.limits.json).map_err(|error| Fault::from(format!("payload is {error}")))
    }

    pub fn charged_column(&mut self, column: Column) -> Result<Value, Fault> {
        let bytes = if column == Column::Payload {
            self.event.payload().len()
        } else {
            0
        };
        self.budget.make(bytes)?;
        Ok(self.column(column))
    }

    pub fn column(&mut self, column: Column) -> Value {
        match column {
            Column::Payload => Value::Text(Text::new(self.event.payload())),
            Column::Metadata => {
                let id = Value::Text(self.rule.id().clone());
                Value::Map(Map::from_entries(vec![(Text::from("rule_id"), id)]))
            }
            column => self.event.column(column),
        }
    }

    /// Steps with their names and indexes looked up.
    fn places(&mut self, path: &[Step]) -> Result<Vec<Place>, Fault> {
        path.iter().map(|step| self.place(step)).collect()
    }

    fn place(&mut self, step: &Step) -> Result<Place, Fault> {
        Ok(match step {
            Step::Key(key) => Place::Key(key.clone()),
            Step::Index(index) => Place::Index((*index).into()),
            Step::Head => Place::Head,
            Step::Tail => Place::Tail,
            Step::By(variable, _) => match self.variable(variable)? {
                Value::Int(index) => Place::Index(index),
                Value::Text(key) => Place::Key(key),
                _ => Place::Nowhere,
            },
        })
    }

    /// A field of the payload, found on the tape: nothing else is made a value.
    fn payload_path(&mut self, path: &[Step]) -> Result<Value, Fault> {
        // A rule may have other sources with one.
        if !self.event.kind().has(Column::Payload) {
            return Ok(Value::Undefined);
        }
        self.read_payload()?;
        let bytes = self.event.payload();
        let mut node = Tape::ROOT;
        for (i, step) in path.iter().enumerate() {
            self.budget.step(1)?;
            if self.cache.tape.is_string(node) {
                self.budget.make(self.cache.tape.size(node))?;
                let text = self.cache.tape.value(bytes, node);
                let rest = self.places(&path[i..])?;
                return self.get(&text, &rest);
            }
            match self.child(node, step, bytes)? {
                Some(child) => node = child,
                None => return Ok(Value::Undefined),
            }
        }
        self.budget.make(self.cache.tape.size(node))?;
        Ok(self.cache.tape.value(bytes, node))
    }

    /// As `payload_path`, for keys that are known.
    pub fn payload_places(&mut self, path: &[Place]) -> Result<Value, Fault> {
        let steps: Vec<Step> = path
            .iter()
            .filter_map(|place| {
                if let Place::Key(key) = place {
                    Some(Step::Key(key.clone()))
                } else {
                    None
                }
            })
            .collect();
        self.payload_path(&steps)
    }

    fn child(&mut self, node: Node, step: &Step, bytes: &[u8]) -> Result<Option<Node>, Fault> {
        if let Step::Key(key) = step {
            return Ok(self.cache.tape.get_key(bytes, node, key));
        }
        Ok(match self.place(step)? {
            Place::Key(key) => self.cache.tape.get_key(bytes, node, &key),
            Place::Index(index) => self.cache.tape.get_index(node, index),
            _ => None,
        })
    }

    fn read_payload(&mut self) -> Result<(), Fault> {
        if matches!(self.cache.payload, PayloadState::Unread) {
            let parsed = self.cache.tape.parse(self.event.payload(), &self.rule.limits.json);
            self.cache.payload = parsed.map_or_else(PayloadState::NotJson, |()| PayloadState::Json);
        }
        match self.cache.payload {
            PayloadState::NotJson(error) => Err(Fault::from(format!("payload is {error}"))),
            _ => Ok(()),
        }
    }

    /// Patterns that come with messages; those in the text of a rule are compiled with it.
    pub fn regexes(&mut self) -> &mut RegexCache {
        &mut self.cache.regexes
    }

    /// The same of jq.
    pub fn programs(&mut self) -> &mut ProgramCache {
        &mut self.cache.programs
    }
}
