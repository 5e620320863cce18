//! Nodes that create and clear alarms, beside the rules of profiles.

use std::rc::Rc;

use serde_json::{Value as Json, json};

use super::action::alarm_message;
use super::{At, Outcome};
use crate::alarm_rules::{Action, Condition, Effect};
use crate::chain::host::{Host, NodeError};
use crate::chain::message::{Message, fill};
use crate::chain::script::Script;
use crate::ids::{AlarmId, EntityType, TenantId};
use crate::model::{Alarm, AlarmSeverity};

#[derive(Debug)]
pub struct AlarmNode {
    pub kind: String,
    /// `None`: empty details.
    pub details: Option<Script>,
    /// May be a pattern.
    pub severity: String,
    /// Type, severity and details come from the data.
    pub uses_message: bool,
    pub keeps_details: bool,
    pub propagate: bool,
    pub propagate_to_owner: bool,
    pub propagate_to_tenant: bool,
    pub relation_types: Vec<String>,
}

impl AlarmNode {
    /// By "Created" or "Updated", as an alarm.
    pub fn create<'a>(&self, at: At<'_>, message: &Message<'a>, host: &mut dyn Host) -> Result<Outcome<'a>, NodeError> {
        let given = self.given(message)?;
        let kind = match &given {
            Some(alarm) => alarm.kind.clone(),
            None => fill(&self.kind, message)?,
        };
        let known = host.active_alarm(message.originator, &kind)?;
        let now_ms = host.now_ms();
        let (action, label, told) = match &known {
            Some(_) => (Action::Updated, "Updated", "ENTITY_UPDATED"),
            None => (Action::Created, "Created", "ENTITY_CREATED"),
        };
        let mut alarm = match known {
            Some(known) => known,
            None => self.new_alarm(kind, message, host)?,
        };
        let is_raised = action == Action::Updated;
        alarm.end_ts = if is_raised { now_ms } else { alarm.start_ts };
        match given {
            Some(given) => {
                alarm.severity = given.severity;
                alarm.details = given.details.or_else(|| alarm.details.take());
                alarm.propagate = given.propagate;
                alarm.propagate_to_owner = given.propagate_to_owner;
                alarm.propagate_to_tenant = given.propagate_to_tenant;
            }
            None => self.apply(&mut alarm, is_raised, message)?,
        }
        host.put_alarm(&alarm)?;
        host.tell_of_alarm(told, &alarm, at.node.id)?;
        let effect = Effect {
            action,
            alarm,
            condition: Condition::Simple,
        };
        Ok(Outcome::Goes(label.into(), Rc::new(alarm_message(&effect, message)?)))
    }

    fn given(&self, message: &Message<'_>) -> Result<Option<Alarm>, NodeError> {
        if !self.uses_message {
            return Ok(None);
        }
        let mut json = message.json().into_owned();
        if let Some(members) = json.as_object_mut() {
            let originator = serde_json::to_value(message.originator).unwrap_or_default();
            members.entry("originator").or_insert(originator);
        }
        let alarm =
            serde_json::from_value(json).map_err(|error| NodeError::new(format!("the data is no alarm: {error}")))?;
        Ok(Some(alarm))
    }

    fn new_alarm(&self, kind: String, message: &Message<'_>, host: &dyn Host) -> Result<Alarm, NodeError> {
        let entity = host.entity(message.originator)?.unwrap_or_default();
        let tenant = entity["tenantId"]["id"].as_str().and_then(crate::ids::Uuid::parse);
        let mut alarm = Alarm::new(
            TenantId(tenant.unwrap_or(message.originator.id)),
            message.originator,
            &kind,
            AlarmSeverity::Indeterminate,
        );
        let id = host.new_alarm_id();
        alarm.id = Some(id);
        alarm.created_time = id.0.created_ms();
        alarm.customer_id = Some(message.customer);
        alarm.start_ts = message.data_ts_ms();
        Ok(alarm)
    }

    fn apply(&self, alarm: &mut Alarm, is_known: bool, message: &Message<'_>) -> Result<(), NodeError> {
        let severity = AlarmSeverity::parse(&fill(&self.severity, message)?);
        alarm.severity = severity
            .ok_or_else(|| NodeError::new("Used incorrect pattern or Alarm Severity not included in message"))?;
        if !is_known || !self.keeps_details {
            alarm.details = Some(self.details_of(alarm, message)?);
        }
        alarm.propagate = self.propagate;
        alarm.propagate_to_owner = self.propagate_to_owner;
        alarm.propagate_to_tenant = self.propagate_to_tenant;
        alarm.propagate_relation_types = Some(self.relation_types.clone());
        Ok(())
    }

    /// The script finds those that the alarm has in the metadata.
    fn details_of(&self, alarm: &Alarm, message: &Message<'_>) -> Result<Json, NodeError> {
        let Some(script) = &self.details else {
            return Ok(json!({}));
        };
        let mut asked = message.clone();
        if let Some(details) = &alarm.details {
            asked.metadata.put("prevAlarmDetails", details.to_string());
        }
        script.run(&asked)
    }

    /// By "Cleared", or by "False" with the message as it came if there is nothing to clear. Of an alarm itself its type does not matter.
    pub fn clear<'a>(
        &self,
        at: At<'_>,
        message: Rc<Message<'a>>,
        host: &mut dyn Host,
    ) -> Result<Outcome<'a>, NodeError> {
        let known = match message.originator.kind {
            EntityType::Alarm => {
                let alarm = host.alarm(AlarmId(message.originator.id))?;
                alarm.filter(|alarm| !alarm.cleared)
            }
            _ => host.active_alarm(message.originator, &fill(&self.kind, &message)?)?,
        };
        let Some(mut alarm) = known else {
            return Ok(Outcome::Goes("False".into(), message));
        };
        if self.details.is_some() {
            alarm.details = Some(self.details_of(&alarm, &message)?);
        }
        alarm.cleared = true;
        alarm.clear_ts = host.now_ms();
        host.put_alarm(&alarm)?;
        host.tell_of_alarm("ALARM_CLEAR", &alarm, at.node.id)?;
        let effect = Effect {
            action: Action::Cleared,
            alarm,
            condition: Condition::Simple,
        };
        Ok(Outcome::Goes(
            "Cleared".into(),
            Rc::new(alarm_message(&effect, &message)?),
        ))
    }
}
