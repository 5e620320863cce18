//! Nodes that create and clear alarms, independently of the profile's rules.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::action::alarm_message;
use super::{NodeOutcome, NodePosition};
use crate::alarm_rules::{AlarmEffect, AlarmTransition, FiredCondition};
use crate::chain::host::{Host, NodeError};
use crate::chain::message::{ChainMessage, fill};
use crate::chain::script::Script;
use crate::ids::{AlarmId, EntityType, TenantId};
use crate::model::{Alarm, AlarmSeverity};

#[derive(Debug)]
pub struct AlarmNode {
    pub kind: String,
    /// `None` sets empty details.
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
    /// Creates or updates an alarm. Emits it by "Created" or "Updated".
    pub fn create<'a>(
        &self,
        at: NodePosition<'_>,
        message: &ChainMessage<'a>,
        details: Option<Json>,
        host: &mut dyn Host,
    ) -> Result<NodeOutcome<'a>, NodeError> {
        let given = self.alarm_from_data(message)?;
        let kind = match &given {
            Some(alarm) => alarm.kind.clone(),
            None => fill(&self.kind, message)?,
        };
        let known = host.active_alarm(message.originator, &kind)?;
        let now_ms = host.now_ms();
        let (action, label, event) = match &known {
            Some(_) => (AlarmTransition::Updated, "Updated", "ENTITY_UPDATED"),
            None => (AlarmTransition::Created, "Created", "ENTITY_CREATED"),
        };
        let mut alarm = match known {
            Some(known) => known,
            None => self.new_alarm(kind, message, host)?,
        };
        let is_raised = action == AlarmTransition::Updated;
        alarm.end_ts = if is_raised { now_ms } else { alarm.start_ts };
        match given {
            Some(given) => {
                alarm.severity = given.severity;
                alarm.details = given.details.or_else(|| alarm.details.take());
                alarm.propagate = given.propagate;
                alarm.propagate_to_owner = given.propagate_to_owner;
                alarm.propagate_to_tenant = given.propagate_to_tenant;
            }
            None => self.apply(&mut alarm, is_raised, details, message)?,
        }
        host.put_alarm(&alarm)?;
        host.send_alarm_event(event, &alarm, at.node.id)?;
        let effect = AlarmEffect {
            action,
            alarm,
            condition: FiredCondition::Simple,
        };
        Ok(NodeOutcome::Next(
            label.into(),
            Arc::new(alarm_message(&effect, message)?),
        ))
    }

    fn alarm_from_data(&self, message: &ChainMessage<'_>) -> Result<Option<Alarm>, NodeError> {
        if !self.uses_message {
            return Ok(None);
        }
        let mut json = message.json().into_owned();
        if let Some(members) = json.as_object_mut() {
            let originator = serde_json::to_value(message.originator).unwrap_or_default();
            members.entry("originator").or_insert(originator);
        }
        let alarm = serde_json::from_value(json)
            .map_err(|error| NodeError::new(format!("the data is not an alarm: {}", input_errors::plain(&error))))?;
        Ok(Some(alarm))
    }

    fn new_alarm(&self, kind: String, message: &ChainMessage<'_>, host: &dyn Host) -> Result<Alarm, NodeError> {
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

    fn apply(
        &self,
        alarm: &mut Alarm,
        is_known: bool,
        details: Option<Json>,
        message: &ChainMessage<'_>,
    ) -> Result<(), NodeError> {
        let severity = AlarmSeverity::parse(&fill(&self.severity, message)?);
        alarm.severity = severity
            .ok_or_else(|| NodeError::new("Used incorrect pattern or Alarm Severity not included in message"))?;
        if !is_known || !self.keeps_details {
            alarm.details = Some(details.unwrap_or_else(|| json!({})));
        }
        alarm.propagate = self.propagate;
        alarm.propagate_to_owner = self.propagate_to_owner;
        alarm.propagate_to_tenant = self.propagate_to_tenant;
        alarm.propagate_relation_types = Some(self.relation_types.clone());
        Ok(())
    }

    /// Returns the script of the details if creating or updating an alarm for this message needs it.
    pub fn script_of_create<'a>(
        &self,
        message: &Arc<ChainMessage<'a>>,
        host: &dyn Host,
    ) -> Result<Option<(&Script, Arc<ChainMessage<'a>>)>, NodeError> {
        let Some(script) = self.details.as_ref().filter(|_| !self.uses_message) else {
            return Ok(None);
        };
        let known = host.active_alarm(message.originator, &fill(&self.kind, message)?)?;
        if known.is_some() && self.keeps_details {
            return Ok(None);
        }
        Ok(Some((script, script_input(known.as_ref(), message))))
    }

    /// Returns the script of the details if there is an alarm to clear.
    pub fn script_of_clear<'a>(
        &self,
        message: &Arc<ChainMessage<'a>>,
        host: &dyn Host,
    ) -> Result<Option<(&Script, Arc<ChainMessage<'a>>)>, NodeError> {
        let Some(script) = &self.details else {
            return Ok(None);
        };
        let known = self.alarm_to_clear(message, host)?;
        Ok(known.map(|alarm| (script, script_input(Some(&alarm), message))))
    }

    fn alarm_to_clear(&self, message: &ChainMessage<'_>, host: &dyn Host) -> Result<Option<Alarm>, NodeError> {
        match message.originator.kind {
            EntityType::Alarm => {
                let alarm = host.alarm(AlarmId(message.originator.id))?;
                Ok(alarm.filter(|alarm| !alarm.cleared))
            }
            _ => host.active_alarm(message.originator, &fill(&self.kind, message)?),
        }
    }

    /// Clears an alarm and emits it by "Cleared". Without an alarm to clear, emits the message by "False". If the
    /// originator is an alarm, the alarm type is ignored.
    pub fn clear<'a>(
        &self,
        at: NodePosition<'_>,
        message: Arc<ChainMessage<'a>>,
        details: Option<Json>,
        host: &mut dyn Host,
    ) -> Result<NodeOutcome<'a>, NodeError> {
        let Some(mut alarm) = self.alarm_to_clear(&message, host)? else {
            return Ok(NodeOutcome::Next("False".into(), message));
        };
        if details.is_some() {
            alarm.details = details;
        }
        alarm.cleared = true;
        alarm.clear_ts = host.now_ms();
        host.put_alarm(&alarm)?;
        host.send_alarm_event("ALARM_CLEAR", &alarm, at.node.id)?;
        let effect = AlarmEffect {
            action: AlarmTransition::Cleared,
            alarm,
            condition: FiredCondition::Simple,
        };
        Ok(NodeOutcome::Next(
            "Cleared".into(),
            Arc::new(alarm_message(&effect, &message)?),
        ))
    }
}

/// The script gets the alarm's current details in the metadata.
fn script_input<'a>(alarm: Option<&Alarm>, message: &Arc<ChainMessage<'a>>) -> Arc<ChainMessage<'a>> {
    let Some(details) = alarm.and_then(|alarm| alarm.details.as_ref()) else {
        return Arc::clone(message);
    };
    let mut input = ChainMessage::clone(message);
    input.metadata.put("prevAlarmDetails", details.to_string());
    Arc::new(input)
}
