//! What stands below an alarm when somebody acknowledged, cleared or assigned it: comments of the system, with ThingsBoard's
//! texts. What rules do to an alarm makes none.

use platform::entities::EntityError;
use platform::ids::UserId;
use platform::model::{Alarm, AlarmComment, User};
use serde_json::{Value, json};

use super::call::Call;
use super::failure::Failure;

/// For each thing that is another one than before. An alarm that has as many comments as it may have gets no more.
pub fn note(call: &Call, before: &Alarm, after: &Alarm) -> Result<(), Failure> {
    for comment in changes(call, before, after)? {
        let comment = AlarmComment {
            tenant_id: after.tenant_id,
            alarm_id: after.id.unwrap_or_default(),
            kind: Some("SYSTEM".to_owned()),
            comment,
            ..AlarmComment::default()
        };
        match call.entities().save_alarm_comment(comment, call.now_ms) {
            Ok(_) | Err(EntityError::Invalid(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn changes(call: &Call, before: &Alarm, after: &Alarm) -> Result<Vec<Value>, Failure> {
    let mut all = Vec::new();
    let who = own_title(call)?;
    let by_user = |subtype: &str, text: String| json!({"text": text, "subtype": subtype, "userId": call.person.id, "userName": who});
    if after.acknowledged && !before.acknowledged {
        all.push(by_user("ACK", format!("Alarm was acknowledged by user {who}")));
    }
    if after.cleared && !before.cleared {
        all.push(by_user("CLEAR", format!("Alarm was cleared by user {who}")));
    }
    match after.assignee_id {
        same if same == before.assignee_id => {}
        None => all.push(by_user("ASSIGN", format!("Alarm was unassigned by user {who}"))),
        Some(assignee) => {
            let name = title(call, assignee)?.unwrap_or_default();
            let mut comment = by_user("ASSIGN", format!("Alarm was assigned by user {who} to user {name}"));
            (comment["assigneeId"], comment["assigneeName"]) = (json!(assignee), name.into());
            all.push(comment);
        }
    }
    Ok(all)
}

/// Of whoever asks.
pub fn own_title(call: &Call) -> Result<String, Failure> {
    Ok(title(call, call.person.id)?.unwrap_or_else(|| call.person.name.clone()))
}

/// The names that a user has, else the address.
fn title(call: &Call, id: UserId) -> Result<Option<String>, Failure> {
    let user: Option<User> = call.entities().find(id.0)?;
    Ok(user.map(|user| {
        let names: Vec<String> = [user.first_name, user.last_name]
            .into_iter()
            .flatten()
            .filter(|name| !name.is_empty())
            .collect();
        if names.is_empty() { user.email } else { names.join(" ") }
    }))
}
