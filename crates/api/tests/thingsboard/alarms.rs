//! Alarms of rules and users: lists, acknowledgement, clearing, assignment, comments.

use serde_json::{Value, json};

use super::server::{CUSTOMER, SYSADMIN, Server, TENANT, id, refused};

fn create(server: &Server, device: &str, kind: &str, severity: &str) -> Value {
    let body = json!({"type": kind, "originator": {"entityType": "DEVICE", "id": device}, "severity": severity,
        "status": "ACTIVE_UNACK", "details": {"a": 1}, "propagate": false});
    server.post("/api/alarm", body).ok().json()
}

#[test]
fn originator_has_one_uncleared_alarm_per_type() {
    let server = Server::start();
    let device = server.device("d");
    let first = create(&server, &device, "hot", "MINOR");
    assert_eq!(
        (&first["status"], &first["name"]),
        (&json!("ACTIVE_UNACK"), &json!("hot"))
    );
    let second = create(&server, &device, "hot", "CRITICAL");
    assert_eq!((&second["id"], &second["severity"]), (&first["id"], &json!("CRITICAL")));
    let alarm = format!("/api/alarm/{}", id(&first));
    server.post(&format!("{alarm}/ack"), Value::Null).ok();
    let acknowledged = server.get(&alarm).ok().json();
    assert_eq!(
        (&acknowledged["status"], &acknowledged["acknowledged"]),
        (&json!("ACTIVE_ACK"), &json!(true))
    );
    server.post(&format!("{alarm}/clear"), Value::Null).ok();
    assert_eq!(server.get(&alarm).ok().json()["status"], "CLEARED_ACK");
    let third = create(&server, &device, "hot", "MINOR");
    assert_ne!(third["id"], first["id"]);
    assert_eq!(server.delete(&alarm).ok().json(), json!(true));
    refused(&server.get(&alarm), 404, 32);
    refused(&server.post(&format!("{alarm}/ack"), Value::Null), 404, 32);
}

#[test]
fn alarms_are_listed_by_status_severity_type_and_entity() {
    let server = Server::start();
    let (one, two) = (server.device("one"), server.device("two"));
    let hot = create(&server, &one, "hot", "CRITICAL");
    create(&server, &one, "cold", "MINOR");
    let wet = create(&server, &two, "wet", "MAJOR");
    server.post(&format!("/api/alarm/{}/ack", id(&hot)), Value::Null).ok();
    server.post(&format!("/api/alarm/{}/clear", id(&wet)), Value::Null).ok();
    let types = |target: &str| {
        let page = server.get(target).ok().json();
        let mut types: Vec<String> = page["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|alarm| alarm["type"].as_str().unwrap().into())
            .collect();
        types.sort();
        types.join(",")
    };
    let page = "pageSize=10&page=0";
    let cases = [
        (format!("/api/alarms?{page}"), "cold,hot,wet"),
        (format!("/api/alarms?{page}&searchStatus=ACTIVE"), "cold,hot"),
        (format!("/api/alarms?{page}&searchStatus=UNACK"), "cold,wet"),
        (format!("/api/alarms?{page}&status=CLEARED_UNACK"), "wet"),
        (format!("/api/alarms?{page}&textSearch=ol"), "cold"),
        (format!("/api/alarms?{page}&endTime=1000"), ""),
        (format!("/api/alarm/DEVICE/{one}?{page}"), "cold,hot"),
        (format!("/api/v2/alarms?{page}&statusList=ACTIVE,ACK"), "hot"),
        (format!("/api/v2/alarms?{page}&severityList=MINOR,MAJOR"), "cold,wet"),
        (format!("/api/v2/alarms?{page}&typeList=wet"), "wet"),
        (format!("/api/v2/alarm/DEVICE/{two}?{page}"), "wet"),
    ];
    for (target, expected) in cases {
        assert_eq!(types(&target), expected, "{target}");
    }
    let highest = |query: &str| {
        server
            .get(&format!("/api/alarm/highestSeverity/DEVICE/{one}?{query}"))
            .ok()
            .body
    };
    assert_eq!(
        (
            highest("").as_str(),
            highest("searchStatus=UNACK").as_str(),
            highest("searchStatus=CLEARED").as_str()
        ),
        ("\"CRITICAL\"", "\"MINOR\"", "")
    );
    let kinds = server.get(&format!("/api/alarm/types?{page}")).ok().json();
    assert_eq!(
        (&kinds["totalElements"], &kinds["data"][0]["type"]),
        (&json!(3), &json!("cold"))
    );
    refused(
        &server.get(&format!("/api/alarms?{page}&searchStatus=ACTIVE&status=ACTIVE_ACK")),
        400,
        31,
    );
    refused(&server.get(&format!("/api/alarms?{page}&searchStatus=WARM")), 400, 31);
    let info = server.get(&format!("/api/alarm/info/{}", id(&hot))).ok().json();
    assert_eq!(info["originatorName"], "one");
}

fn text_of(comment: &Value) -> String {
    comment["comment"]["text"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn alarms_are_assigned_and_commented() {
    let server = Server::start();
    let device = server.device("d");
    let customer = server.customer();
    server
        .post(&format!("/api/customer/{customer}/device/{device}"), Value::Null)
        .ok();
    let alarm = create(&server, &device, "hot", "MAJOR");
    let target = format!("/api/alarm/{}", id(&alarm));
    let me = server.get("/api/auth/user").ok().json();
    let assigned = server
        .post(&format!("{target}/assign/{}", id(&me)), Value::Null)
        .ok()
        .json();
    assert_eq!(
        (&assigned["assigneeId"]["id"], &assigned["assignee"]["email"]),
        (&me["id"]["id"], &json!(TENANT))
    );
    let again = server.post(&format!("{target}/assign/{}", id(&me)), Value::Null);
    assert_eq!(refused(&again, 400, 31), "Alarm was already assigned to this user!");
    server.delete(&format!("{target}/assign")).ok();
    let again = server.delete(&format!("{target}/assign"));
    assert_eq!(refused(&again, 400, 31), "Alarm was already unassigned!");
    assert_eq!(server.get(&target).ok().json()["assigneeId"], Value::Null);
    let write = |user: &str, body: Value| server.as_user(user, "POST", &format!("{target}/comment"), &body);
    let comment = write(CUSTOMER, json!({"comment": {"text": "on it"}})).ok().json();
    assert_eq!(comment["type"], "OTHER");
    refused(&write(CUSTOMER, json!({"comment": {"text": " "}})), 400, 31);
    refused(
        &write(TENANT, json!({"id": comment["id"], "comment": {"text": "not mine"}})),
        403,
        20,
    );
    for (done, refusal) in [
        ("ack", "Alarm was already acknowledged!"),
        ("clear", "Alarm was already cleared!"),
    ] {
        let do_it = || server.post(&format!("{target}/{done}"), Value::Null);
        do_it().ok();
        assert_eq!(refused(&do_it(), 400, 31), refusal);
    }
    let listed = || {
        let all = format!("{target}/comment?pageSize=10&page=0&sortProperty=createdTime&sortOrder=ASC");
        server.get(&all).ok().json()["data"].as_array().expect("a page").clone()
    };
    let shown: Vec<(String, Value)> = listed()
        .iter()
        .map(|comment| (text_of(comment), comment["email"].clone()))
        .collect();
    let by_system = |text: String| (text, Value::Null);
    // Changes without an effect add no comment.
    assert_eq!(
        shown,
        [
            by_system(format!("Alarm was assigned by user {TENANT} to user {TENANT}")),
            by_system(format!("Alarm was unassigned by user {TENANT}")),
            ("on it".to_owned(), json!(CUSTOMER)),
            by_system(format!("Alarm was acknowledged by user {TENANT}")),
            by_system(format!("Alarm was cleared by user {TENANT}")),
        ]
    );
    let first = &listed()[0];
    assert_eq!(
        (
            &first["type"],
            &first["comment"]["subtype"],
            &first["comment"]["assigneeName"]
        ),
        (&json!("SYSTEM"), &json!("ASSIGN"), &json!(TENANT))
    );
    // Users cannot change comments of other users.
    refused(
        &write(TENANT, json!({"id": first["id"], "comment": {"text": "not so"}})),
        403,
        20,
    );
    let changed = write(CUSTOMER, json!({"id": comment["id"], "comment": {"text": "done"}}))
        .ok()
        .json();
    assert_eq!(
        (&changed["comment"]["text"], &changed["comment"]["edited"]),
        (&json!("done"), &json!("true"))
    );
    assert!(changed["comment"]["editedOn"].as_i64() >= comment["createdTime"].as_i64());
    server.delete(&format!("{target}/comment/{}", id(&comment))).ok();
    let gone = &listed()[2];
    assert_eq!(text_of(gone), format!("User {TENANT} deleted his comment"));
    assert_eq!(
        (&gone["type"], &gone["comment"]["subtype"]),
        (&json!("SYSTEM"), &json!("COMMENT_DELETED"))
    );
    let again = server.delete(&format!("{target}/comment/{}", id(&comment)));
    assert_eq!(refused(&again, 400, 31), "System comment could not be deleted");
    // A customer user cannot change alarms of a device of another customer.
    let other = create(&server, &server.device("other"), "hot", "MAJOR");
    refused(
        &server.as_user(
            CUSTOMER,
            "POST",
            &format!("/api/alarm/{}/ack", id(&other)),
            &Value::Null,
        ),
        403,
        20,
    );
}

#[test]
fn assignees_are_administrators_and_users_of_the_customer() {
    let server = Server::start();
    let (device, other) = (server.device("d"), server.device("other"));
    let customer = server.customer();
    let target = format!("/api/customer/{customer}/device/{device}");
    server.post(&target, Value::Null).ok();
    let theirs = create(&server, &device, "hot", "MAJOR");
    let ours = create(&server, &other, "hot", "MAJOR");
    let colleague = json!({"email": "second@thingsboard.org", "authority": "CUSTOMER_USER", "customerId": {"entityType": "CUSTOMER", "id": customer}});
    server.post("/api/user", colleague).ok();
    let target = |alarm: &Value, query: &str| format!("/api/users/assign/{}?{query}", id(alarm));
    let people = |user: &str, alarm: &Value, query: &str| {
        let page = server
            .as_user(user, "GET", &target(alarm, query), &Value::Null)
            .ok()
            .json();
        let emails = page["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|user| user["email"].as_str().unwrap().to_owned());
        (
            emails.collect::<Vec<_>>(),
            page["totalElements"].as_u64().unwrap(),
            page["hasNext"].as_bool().unwrap(),
        )
    };
    let all = "pageSize=10&page=0&sortProperty=email";
    let second = "second@thingsboard.org";
    let cases = [
        (TENANT, &theirs, all, vec![TENANT, CUSTOMER, second], 3, false),
        (
            TENANT,
            &theirs,
            "pageSize=2&page=0&sortProperty=email",
            vec![TENANT, CUSTOMER],
            3,
            true,
        ),
        (
            TENANT,
            &theirs,
            "pageSize=2&page=1&sortProperty=email",
            vec![second],
            3,
            false,
        ),
        (TENANT, &theirs, "pageSize=1&page=3", vec![], 3, false),
        (
            TENANT,
            &theirs,
            "pageSize=10&page=0&textSearch=SECOND",
            vec![second],
            1,
            false,
        ),
        (TENANT, &ours, all, vec![TENANT], 1, false),
        (CUSTOMER, &theirs, all, vec![CUSTOMER, second], 2, false),
    ];
    for (user, alarm, query, emails, total, has_next) in cases {
        let emails = emails.into_iter().map(str::to_owned).collect();
        assert_eq!(people(user, alarm, query), (emails, total, has_next), "{user} {query}");
    }
    let page = server.get(&target(&theirs, all)).ok().json();
    let keys: Vec<&String> = page["data"][0].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["email", "firstName", "id", "lastName"]);
    refused(
        &server.as_user(CUSTOMER, "GET", &target(&ours, all), &Value::Null),
        403,
        20,
    );
    refused(
        &server.as_user(SYSADMIN, "GET", &target(&theirs, all), &Value::Null),
        403,
        20,
    );
    refused(&server.send("GET", &target(&theirs, all), None, ""), 401, 10);
    refused(
        &server.get(&format!(
            "/api/users/assign/{}?{all}",
            id(&server.get("/api/auth/user").ok().json())
        )),
        404,
        32,
    );
    refused(&server.get(&target(&theirs, "pageSize=10")), 400, 31);
    refused(&server.get(&target(&theirs, "pageSize=10000&page=1")), 400, 31);
}
