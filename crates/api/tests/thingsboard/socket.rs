//! The WebSocket: both ways to authenticate, all types of subscriptions, errors.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::server::{CUSTOMER, Server, TENANT, id};
use super::web;

pub struct Socket {
    stream: TcpStream,
}

impl Socket {
    pub fn open(server: &Server, target: &str) -> Result<Socket, String> {
        let mut stream = web::connect(server.node.address);
        let headers = [
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        let headers: String = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        write!(stream, "GET {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        if head.starts_with("HTTP/1.1 101") {
            Ok(Socket { stream })
        } else {
            Err(head)
        }
    }

    fn of(server: &Server, user: &str) -> Socket {
        Socket::open(
            server,
            &format!("/api/ws/plugins/telemetry?token={}", server.token(user)),
        )
        .unwrap()
    }

    pub fn send(&mut self, message: &Value) {
        let text = message.to_string();
        let mut frame = vec![0x81];
        match text.len() {
            length if length < 126 => frame.push(0x80 | u8::try_from(length).unwrap()),
            length => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
            }
        }
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(text.as_bytes());
        self.stream.write_all(&frame).unwrap();
    }

    fn frame(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.stream.read_exact(&mut head).unwrap();
        let length = match head[1] {
            126 => {
                let mut length = [0; 2];
                self.stream.read_exact(&mut length).unwrap();
                usize::from(u16::from_be_bytes(length))
            }
            127 => {
                let mut length = [0; 8];
                self.stream.read_exact(&mut length).unwrap();
                usize::try_from(u64::from_be_bytes(length)).unwrap()
            }
            length => usize::from(length),
        };
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).unwrap();
        (head[0] & 0x0f, payload)
    }

    #[track_caller]
    pub fn next(&mut self) -> Value {
        loop {
            match self.frame() {
                (0x1, payload) => return serde_json::from_slice(&payload).unwrap(),
                (0x9, _) => {}
                (opcode, payload) => panic!("frame {opcode} {payload:?}"),
            }
        }
    }

    fn close_code(&mut self) -> u16 {
        let (opcode, payload) = self.frame();
        assert_eq!(opcode, 0x8);
        u16::from_be_bytes([payload[0], payload[1]])
    }
}

fn save(server: &Server, device: &str, ts: i64, values: Value) {
    let path = format!("/api/plugins/telemetry/DEVICE/{device}/timeseries/ANY");
    server.post(&path, json!({"ts": ts, "values": values})).ok();
}

/// Saved values are acknowledged before they are processed.
fn wait_until_stored(server: &Server, device: &str, key: &str, newest: &str) {
    let target = format!("/api/plugins/telemetry/DEVICE/{device}/values/timeseries?keys={key}");
    server.wait_for(&target, |all| all[key][0]["value"] == newest);
}

#[test]
fn old_path_sends_telemetry_once_and_in_order() {
    let server = Server::start();
    let device = server.device("d");
    save(&server, &device, 1000, json!({"a": 1, "b": 1}));
    server.wait_for(
        &format!("/api/plugins/telemetry/DEVICE/{device}/keys/timeseries"),
        |keys| *keys == json!(["a", "b"]),
    );
    let mut socket = Socket::of(&server, TENANT);
    let command =
        json!({"entityType": "DEVICE", "entityId": device, "scope": "LATEST_TELEMETRY", "cmdId": 7, "keys": "a"});
    socket.send(&json!({"tsSubCmds": [command], "historyCmds": [], "attrSubCmds": []}));
    let first = socket.next();
    assert_eq!(
        first,
        json!({"subscriptionId": 7, "errorCode": 0, "errorMsg": null, "data": {"a": [[1000, "1"]]}, "latestValues": {"a": 1000}})
    );
    for number in 0..20 {
        save(&server, &device, 2000 + number, json!({"a": number, "b": number}));
    }
    // A point with an earlier time does not change the latest value.
    save(&server, &device, 500, json!({"a": 99}));
    save(&server, &device, 3000, json!({"a": 100}));
    for number in 0..20 {
        assert_eq!(
            socket.next()["data"],
            json!({"a": [[2000 + number, number.to_string()]]})
        );
    }
    assert_eq!(socket.next()["data"], json!({"a": [[3000, "100"]]}));
    let latest = format!("/api/plugins/telemetry/DEVICE/{device}/values/timeseries?keys=a");
    server.wait_for(&latest, |found| found["a"][0]["ts"] == 3000);
    socket.send(&json!({"tsSubCmds": [{"cmdId": 7, "unsubscribe": true}],
        "historyCmds": [{"entityType": "DEVICE", "entityId": device, "cmdId": 8, "keys": "a", "startTs": 2000, "endTs": 2003}]}));
    let history = socket.next();
    assert_eq!(
        (&history["subscriptionId"], &history["data"]["a"]),
        (&json!(8), &json!([[2002, "2"], [2001, "1"], [2000, "0"]]))
    );
}

#[test]
fn hundred_subscribers_receive_each_update() {
    let server = Server::start();
    let device = server.device("d");
    let mut sockets: Vec<Socket> = (0..100).map(|_| Socket::of(&server, TENANT)).collect();
    for socket in &mut sockets {
        socket.send(&json!({"tsSubCmds": [{"entityType": "DEVICE", "entityId": device, "cmdId": 1}]}));
        assert_eq!(socket.next()["data"], json!({}));
    }
    for number in 0..10 {
        save(&server, &device, 1000 + number, json!({"v": number}));
    }
    for socket in &mut sockets {
        for number in 0..10 {
            assert_eq!(socket.next()["data"]["v"], json!([[1000 + number, number.to_string()]]));
        }
    }
}

#[test]
fn attributes_of_a_scope_are_sent() {
    let server = Server::start();
    let device = server.device("d");
    let path = format!("/api/plugins/telemetry/DEVICE/{device}/attributes");
    server.post(&format!("{path}/SERVER_SCOPE"), json!({"limit": 1})).ok();
    let mut socket = Socket::of(&server, TENANT);
    socket.send(&json!({"attrSubCmds": [{"entityType": "DEVICE", "entityId": device, "scope": "SERVER_SCOPE", "cmdId": 1, "keys": "limit"}]}));
    assert_eq!(socket.next()["data"]["limit"][0][1], "1");
    server.post(&format!("{path}/SHARED_SCOPE"), json!({"limit": 5})).ok();
    server.post(&format!("{path}/SERVER_SCOPE"), json!({"other": 1})).ok();
    server.post(&format!("{path}/SERVER_SCOPE"), json!({"limit": 2})).ok();
    assert_eq!(socket.next()["data"]["limit"][0][1], "2");
}

#[test]
fn new_path_sends_entities() {
    let server = Server::start();
    let (one, two) = (server.device("one"), server.device("two"));
    let mut socket = Socket::open(&server, "/api/ws").unwrap();
    let query = json!({"entityFilter": {"type": "deviceType", "deviceTypes": ["default"]}, "pageLink": {"pageSize": 10, "page": 0,
        "sortOrder": {"key": {"type": "ENTITY_FIELD", "key": "name"}, "direction": "ASC"}},
        "entityFields": [{"type": "ENTITY_FIELD", "key": "name"}], "latestValues": [{"type": "TIME_SERIES", "key": "a"}]});
    let command = json!({"type": "ENTITY_DATA", "cmdId": 3, "query": query, "latestCmd": {"keys": [{"type": "SERVER_ATTRIBUTE", "key": "s"}]},
        "tsCmd": {"keys": ["b"], "startTs": 0, "timeWindow": 60000, "interval": 0, "limit": 10, "agg": "NONE"}});
    socket.send(&json!({"authCmd": {"cmdId": 0, "token": server.token(TENANT)}, "cmds": [command]}));
    let first = socket.next();
    assert_eq!(
        (&first["cmdId"], &first["cmdUpdateType"], &first["update"]),
        (&json!(3), &json!("ENTITY_DATA"), &Value::Null)
    );
    assert_eq!(first["data"]["totalElements"], 2);
    assert_eq!(
        first["data"]["data"][1]["latest"]["ENTITY_FIELD"]["name"]["value"],
        "two"
    );
    save(&server, &two, 1000, json!({"a": 5, "b": 6, "c": 7}));
    let update = socket.next();
    assert_eq!(update["data"], Value::Null);
    assert_eq!(update["update"][0]["entityId"]["id"], two.as_str());
    assert_eq!(
        update["update"][0]["latest"],
        json!({"TIME_SERIES": {"a": {"ts": 1000, "value": "5"}}})
    );
    assert_eq!(
        update["update"][0]["timeseries"],
        json!({"b": [{"ts": 1000, "value": "6"}]})
    );
    server
        .post(
            &format!("/api/plugins/telemetry/DEVICE/{one}/attributes/SERVER_SCOPE"),
            json!({"s": "x"}),
        )
        .ok();
    assert_eq!(
        socket.next()["update"][0]["latest"]["SERVER_ATTRIBUTE"]["s"]["value"],
        "x"
    );
    socket.send(&json!({"cmds": [{"type": "ENTITY_DATA_UNSUBSCRIBE", "cmdId": 3}, {"type": "ENTITY_COUNT", "cmdId": 4, "query": query}]}));
    let count = socket.next();
    assert_eq!(
        (&count["cmdId"], &count["count"], &count["cmdUpdateType"]),
        (&json!(4), &json!(2), &json!("COUNT_DATA"))
    );
}

#[test]
fn changed_alarms_are_sent() {
    let server = Server::start();
    let device = server.device("d");
    let mut socket = Socket::of(&server, TENANT);
    let query = json!({"entityFilter": {"type": "singleEntity", "singleEntity": {"entityType": "DEVICE", "id": device}},
        "pageLink": {"pageSize": 10, "page": 0}, "alarmFields": [], "latestValues": []});
    socket
        .send(&json!({"alarmDataCmds": [{"cmdId": 1, "query": query}], "alarmCountCmds": [{"cmdId": 2, "query": {}}]}));
    let frames = [socket.next(), socket.next()];
    let first = frames.iter().find(|frame| frame["cmdId"] == 1).unwrap();
    assert_eq!(
        (&first["cmdUpdateType"], &first["data"]["totalElements"]),
        (&json!("ALARM_DATA"), &json!(0))
    );
    let body = json!({"type": "hot", "originator": {"entityType": "DEVICE", "id": device}, "severity": "MAJOR"});
    let alarm = server.post("/api/alarm", body).ok().json();
    let frames = [socket.next(), socket.next()];
    let update = frames.iter().find(|frame| frame["cmdId"] == 1).unwrap();
    assert_eq!(
        (&update["update"][0]["id"], &update["update"][0]["originatorName"]),
        (&alarm["id"], &json!("d"))
    );
    let count = frames.iter().find(|frame| frame["cmdId"] == 2).unwrap();
    assert_eq!(
        (&count["count"], &count["cmdUpdateType"]),
        (&json!(1), &json!("ALARM_COUNT_DATA"))
    );
    server.post(&format!("/api/alarm/{}/ack", id(&alarm)), Value::Null).ok();
    assert_eq!(socket.next()["update"][0]["status"], "ACTIVE_ACK");
}

#[test]
fn forbidden_subscriptions_are_rejected() {
    let server = Server::start();
    let device = server.device("not the customer's");
    let refused = Socket::open(&server, "/api/ws/plugins/telemetry?token=x")
        .err()
        .unwrap();
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    let mut socket = Socket::of(&server, CUSTOMER);
    socket.send(&json!({"tsSubCmds": [{"entityType": "DEVICE", "entityId": device, "cmdId": 1}]}));
    let answer = socket.next();
    assert_eq!(
        (&answer["subscriptionId"], &answer["errorCode"]),
        (&json!(1), &json!(3))
    );
    socket.send(&json!({"cmds": [{"type": "DANCE", "cmdId": 2}]}));
    assert_eq!(socket.next()["errorCode"], 2);
    socket.send(&json!({"tsSubCmds": 5}));
    assert_eq!(socket.next()["errorCode"], 2);
    // Without authentication, any other command closes the connection.
    let mut socket = Socket::open(&server, "/api/ws").unwrap();
    socket.send(&json!({"tsSubCmds": [{"entityType": "DEVICE", "entityId": device, "cmdId": 1}]}));
    assert_eq!(socket.close_code(), 1008);
}

#[test]
fn unassigned_device_is_no_longer_sent_to_the_customer() {
    let server = Server::start();
    let (customer, device) = (server.customer(), server.device("d"));
    server
        .post(&format!("/api/customer/{customer}/device/{device}"), Value::Null)
        .ok();
    save(&server, &device, 1_000, json!({"v": 1}));
    wait_until_stored(&server, &device, "v", "1");
    let mut socket = Socket::of(&server, CUSTOMER);
    socket.send(&json!({"tsSubCmds": [{"entityType": "DEVICE", "entityId": device, "cmdId": 1, "keys": "v"}],
        "attrSubCmds": [{"entityType": "DEVICE", "entityId": device, "cmdId": 2, "scope": "SERVER_SCOPE", "keys": "a"}]}));
    assert_eq!(socket.next()["subscriptionId"], 1);
    assert_eq!(socket.next()["subscriptionId"], 2);
    let query = json!({"entityFilter": {"type": "singleEntity", "singleEntity": {"entityType": "DEVICE", "id": device}},
        "latestValues": [{"type": "TIME_SERIES", "key": "v"}], "pageLink": {"pageSize": 10, "page": 0}});
    socket.send(&json!({"cmds": [{"type": "ENTITY_DATA", "cmdId": 3, "query": query,
        "latestCmd": {"keys": [{"type": "TIME_SERIES", "key": "v"}]}}]}));
    assert_eq!(socket.next()["cmdId"], 3);
    server.delete(&format!("/api/customer/device/{device}")).ok();
    save(&server, &device, 2_000, json!({"v": "secret"}));
    let mut errors =
        [socket.next(), socket.next()].map(|frame| (frame["subscriptionId"].clone(), frame["errorCode"].clone()));
    errors.sort_by_key(|(id, _)| id.as_i64());
    assert_eq!(errors, [(json!(1), json!(3)), (json!(2), json!(3))]);
    // Further updates would arrive before the answer to this command.
    save(&server, &device, 3_000, json!({"v": "secret"}));
    socket.send(&json!({"cmds": [{"type": "ENTITY_COUNT", "cmdId": 4, "query": {"entityFilter": {"type": "entityType", "entityType": "DEVICE"}}}]}));
    assert_eq!(socket.next()["cmdId"], 4);
}

#[test]
fn tenants_cannot_occupy_all_connections() {
    let server = Server::start();
    let open = |target: &str| Socket::open(&server, target);
    let mut unauthenticated: Vec<Socket> = (0..40).map(|_| open("/api/ws").unwrap()).collect();
    // An address has 20 unauthenticated connections. Further ones close the oldest.
    for mut closed in unauthenticated.drain(..20) {
        assert_eq!(closed.close_code(), 1013);
    }
    // An authenticated connection no longer counts as unauthenticated.
    let count = json!({"type": "ENTITY_COUNT", "cmdId": 1, "query": {"entityFilter": {"type": "entityType", "entityType": "DEVICE"}}});
    unauthenticated[0].send(&json!({"authCmd": {"cmdId": 0, "token": server.token(CUSTOMER)}, "cmds": [count]}));
    assert_eq!(unauthenticated[0].next()["cmdId"], 1);
    let mut late = open("/api/ws").unwrap();
    let of = |user: &str| -> Vec<Socket> {
        let target = format!("/api/ws/plugins/telemetry?token={}", server.token(user));
        (0..200).map_while(|_| open(&target).ok()).collect()
    };
    let customers = of(CUSTOMER);
    assert_eq!(customers.len(), 99, "connections of the customer");
    assert_eq!(
        of(TENANT).len(),
        50,
        "connections of the tenant, including its customers"
    );
    // One connection above the limit authenticates.
    late.send(&json!({"authCmd": {"cmdId": 0, "token": server.token(CUSTOMER)}}));
    assert_eq!(late.close_code(), 1013);
}

#[test]
fn alarm_status_of_a_device_is_sent() {
    let server = Server::start();
    let device = server.device("d");
    let originator = json!({"entityType": "DEVICE", "id": device});
    let mut socket = Socket::of(&server, TENANT);
    socket.send(&json!({"cmds": [{"type": "ALARM_STATUS", "cmdId": 1, "originatorId": originator, "severityList": ["CRITICAL"]}]}));
    let status = |frame: Value| {
        (
            frame["cmdId"].clone(),
            frame["active"].clone(),
            frame["cmdUpdateType"].clone(),
        )
    };
    let expected = |is_active: bool| (json!(1), json!(is_active), json!("ALARM_STATUS"));
    assert_eq!(status(socket.next()), expected(false));
    let raise = |kind: &str, severity: &str| {
        let body = json!({"type": kind, "originator": originator, "severity": severity});
        id(&server.post("/api/alarm", body).ok().json())
    };
    raise("warm", "MINOR");
    let alarm = raise("hot", "CRITICAL");
    assert_eq!(status(socket.next()), expected(true), "no alarm of another severity");
    server.post(&format!("/api/alarm/{alarm}/clear"), Value::Null).ok();
    assert_eq!(status(socket.next()), expected(false));
    socket.send(&json!({"cmds": [{"type": "ALARM_STATUS_UNSUBSCRIBE", "cmdId": 1}]}));
    raise("hot", "CRITICAL");
    // Notifications do not exist. The next answer belongs to the next command.
    socket.send(&json!({"cmds": [{"type": "MARK_ALL_NOTIFICATIONS_AS_READ", "cmdId": 2}, {"type": "NOTIFICATIONS_COUNT", "cmdId": 3},
        {"type": "NOTIFICATIONS", "cmdId": 4, "limit": 10}]}));
    let count = socket.next();
    assert_eq!((&count["cmdId"], &count["totalUnreadCount"]), (&json!(3), &json!(0)));
    assert_eq!(socket.next()["notifications"], json!([]));
    let stranger = server.device("not the customer's");
    let mut customer = Socket::of(&server, CUSTOMER);
    customer.send(&json!({"cmds": [{"type": "ALARM_STATUS", "cmdId": 1, "originatorId": {"entityType": "DEVICE", "id": stranger}}]}));
    assert_eq!(customer.next()["errorCode"], 3);
}

#[test]
fn aggregates_are_compared_with_an_earlier_range() {
    let server = Server::start();
    let device = server.device("d");
    for (ts, value) in [(1_000, 1), (2_000, 3), (11_000, 10), (12_000, 20), (30_000, 99)] {
        save(&server, &device, ts, json!({"v": value}));
    }
    wait_until_stored(&server, &device, "v", "99");
    let query = json!({"entityFilter": {"type": "singleEntity", "singleEntity": {"entityType": "DEVICE", "id": device}},
        "pageLink": {"pageSize": 10, "page": 0}});
    let key =
        |id: i64, agg: &str| json!({"id": id, "key": "v", "agg": agg, "previousStartTs": 0, "previousEndTs": 10_000});
    let mut only_before = key(3, "COUNT");
    only_before["previousValueOnly"] = json!(true);
    let keys = [
        key(1, "AVG"),
        key(2, "MAX"),
        only_before,
        json!({"id": 4, "key": "none", "agg": "SUM"}),
    ];
    let mut socket = Socket::of(&server, TENANT);
    socket.send(&json!({"cmds": [{"type": "ENTITY_DATA", "cmdId": 1, "query": query,
        "aggHistoryCmd": {"startTs": 10_000, "endTs": 20_000, "keys": keys}}]}));
    let frame = socket.next();
    let aggregates = &frame["data"]["data"][0]["aggLatest"];
    let values = |id: &str| {
        (
            aggregates[id]["current"]["value"].clone(),
            aggregates[id]["previous"]["value"].clone(),
        )
    };
    assert_eq!(values("1"), (json!("15.0"), json!("2.0")), "{frame}");
    assert_eq!(values("2"), (json!("20"), json!("3")), "{frame}");
    assert_eq!(values("3"), (Value::Null, json!("2")), "{frame}");
    assert_eq!(aggregates["4"], json!({"current": null, "previous": null}));
    // A time range until now.
    let now = super::server::now_ms();
    save(&server, &device, now - 1_000, json!({"v": 7}));
    wait_until_stored(&server, &device, "v", "7");
    socket.send(&json!({"cmds": [{"type": "ENTITY_DATA", "cmdId": 2, "query": query,
        "aggTsCmd": {"startTs": now - 60_000, "timeWindow": 60_000, "keys": [{"id": 5, "key": "v", "agg": "SUM"}]}}]}));
    let frame = loop {
        let frame = socket.next();
        if frame["cmdId"] == 2 {
            break frame;
        }
    };
    assert_eq!(
        frame["data"]["data"][0]["aggLatest"]["5"]["current"]["value"], "7",
        "{frame}"
    );
}

#[test]
fn second_user_does_not_see_earlier_subscriptions() {
    let server = Server::start();
    let device = server.device("not the customer's");
    let mut socket = Socket::of(&server, TENANT);
    socket.send(&json!({"tsSubCmds": [{"entityType": "DEVICE", "entityId": device, "cmdId": 1, "keys": "v"}]}));
    assert_eq!(socket.next()["subscriptionId"], 1);
    let count = json!({"type": "ENTITY_COUNT", "cmdId": 2, "query": {"entityFilter": {"type": "entityType", "entityType": "DEVICE"}}});
    // The subscription continues with a newer token of the same user.
    socket.send(&json!({"authCmd": {"cmdId": 0, "token": server.token(TENANT)}, "cmds": [count]}));
    assert_eq!(socket.next()["cmdId"], 2);
    save(&server, &device, 1_000, json!({"v": 1}));
    assert_eq!(socket.next()["subscriptionId"], 1);
    socket.send(&json!({"authCmd": {"cmdId": 0, "token": server.token(CUSTOMER)}, "cmds": [count]}));
    assert_eq!(socket.next()["cmdId"], 2);
    save(&server, &device, 2_000, json!({"v": "secret"}));
    let count = json!({"type": "ENTITY_COUNT", "cmdId": 3, "query": {"entityFilter": {"type": "entityType", "entityType": "DEVICE"}}});
    socket.send(&json!({"cmds": [count]}));
    assert_eq!(socket.next()["cmdId"], 3);
}

#[test]
fn answer_with_entities_is_bounded() {
    let server = Server::start();
    let device = server.device("wordy");
    let path = format!("/api/plugins/telemetry/DEVICE/{device}/attributes/SERVER_SCOPE");
    server.post(&path, json!({"text": "x".repeat(60_000)})).ok();
    let query = json!({"entityFilter": {"type": "singleEntity", "singleEntity": {"entityType": "DEVICE", "id": device}},
        "pageLink": {"pageSize": 10, "page": 0}});
    let mut socket = Socket::of(&server, TENANT);
    let mut answer = |count: usize| {
        let keys = vec![json!({"type": "SERVER_ATTRIBUTE", "key": "text"}); count];
        socket.send(
            &json!({"cmds": [{"type": "ENTITY_DATA", "cmdId": count, "query": query, "latestCmd": {"keys": keys}}]}),
        );
        socket.next()
    };
    assert_eq!(answer(1_000)["errorCode"], 0);
    let too_large = answer(1_200);
    assert_eq!(
        (&too_large["cmdId"], &too_large["errorCode"]),
        (&json!(1_200), &json!(2))
    );
    let message = too_large["errorMsg"].as_str().unwrap();
    assert!(message.starts_with("The answer exceeds 64 MiB"), "{message}");
}

/// A key is read once, even if the request names it several times.
#[test]
fn repeated_key_is_counted_once() {
    let server = Server::start();
    let device = server.device("d");
    save(&server, &device, 1000, json!({"a": 1, "b": 2}));
    wait_until_stored(&server, &device, "a", "1");
    let mut socket = Socket::of(&server, TENANT);
    let window =
        json!({"startTs": 0, "endTs": 100_000, "timeWindow": 100_000, "interval": 1, "limit": 50_000, "agg": "COUNT"});
    let with_window = |mut command: Value| {
        for (name, value) in window.as_object().unwrap() {
            command[name] = value.clone();
        }
        command
    };
    let old = json!({"entityType": "DEVICE", "entityId": device, "cmdId": 1, "keys": "b,a,".repeat(500)});
    let counted = json!({"a": [[1000, "1"]], "b": [[1000, "1"]]});
    for list in ["historyCmds", "tsSubCmds"] {
        socket.send(&json!({list: [with_window(old.clone())]}));
        let frame = socket.next();
        assert_eq!((&frame["errorMsg"], &frame["data"]), (&Value::Null, &counted), "{list}");
    }
    let filter = json!({"type": "singleEntity", "singleEntity": {"entityType": "DEVICE", "id": device}});
    let query = json!({"entityFilter": filter, "pageLink": {"pageSize": 10, "page": 0}});
    for (id, member) in [(2, "historyCmd"), (3, "tsCmd")] {
        let series = with_window(json!({"keys": vec!["a"; 500]}));
        socket.send(&json!({"entityDataCmds": [{"cmdId": id, "query": query, member: series}]}));
        let frame = socket.next();
        assert_eq!(
            frame["data"]["data"][0]["timeseries"],
            json!({"a": [{"ts": 1000, "value": "1"}]}),
            "{frame}"
        );
    }
}
