//! System comments on an alarm after a user has acknowledged, cleared or assigned it, with ThingsBoard's texts. Changes
//! by rules create no comments.

use platform::entities::EntityError;
use platform::ids::UserId;
use platform::model::{Alarm, AlarmComment, User};
use serde_json::{Value, json};

use super::call::ApiCall;
use super::failure::ThingsboardError;

/// Adds a comment for each changed property. An alarm at the limit of comments gets no more.
pub fn add_comments(call: &ApiCall, before: &Alarm, after: &Alarm) -> Result<(), ThingsboardError> {
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

fn changes(call: &ApiCall, before: &Alarm, after: &Alarm) -> Result<Vec<Value>, ThingsboardError> {
    let mut all = Vec::new();
    let who = own_title(call)?;
    let by_user = |subtype: &str, text: String| json!({"text": text, "subtype": subtype, "userId": call.principal.id, "userName": who});
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

/// Returns the title of the calling user.
pub fn own_title(call: &ApiCall) -> Result<String, ThingsboardError> {
    Ok(title(call, call.principal.id)?.unwrap_or_else(|| call.principal.name.clone()))
}

/// Returns the user's names, or the e-mail address if there are none.
fn title(call: &ApiCall, id: UserId) -> Result<Option<String>, ThingsboardError> {
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
