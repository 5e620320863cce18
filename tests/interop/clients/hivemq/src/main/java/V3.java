// The client for MQTT 3.1.1.

import com.google.gson.JsonObject;
import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.lifecycle.MqttDisconnectSource;
import com.hivemq.client.mqtt.mqtt3.Mqtt3AsyncClient;
import com.hivemq.client.mqtt.mqtt3.exceptions.Mqtt3ConnAckException;
import com.hivemq.client.mqtt.mqtt3.exceptions.Mqtt3SubAckException;
import com.hivemq.client.mqtt.mqtt3.message.connect.Mqtt3ConnectBuilder;
import com.hivemq.client.mqtt.mqtt3.message.connect.connack.Mqtt3ConnAck;
import com.hivemq.client.mqtt.mqtt3.message.publish.Mqtt3Publish;
import com.hivemq.client.mqtt.mqtt3.message.subscribe.suback.Mqtt3SubAckReturnCode;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;

final class V3 implements Driver.Connection {
    private final String name;
    private Mqtt3AsyncClient client;
    private volatile boolean isConnected;

    V3(String name) {
        this.name = name;
    }

    @Override
    public CompletableFuture<JsonObject> connect(JsonObject request) throws Exception {
        client = Driver.builder(request).useMqttVersion3().addDisconnectedListener(context -> {
            if (isConnected && context.getSource() != MqttDisconnectSource.USER) {
                Driver.sendClosed(name, null);
            }
        }).buildAsync();
        client.publishes(MqttGlobalPublishFilter.ALL, this::received);
        Mqtt3ConnectBuilder.Send<CompletableFuture<Mqtt3ConnAck>> connect = client
                .connectWith()
                .cleanSession(Driver.flag(request, "clean"))
                .keepAlive(request.get("keep_alive").getAsInt());
        if (request.has("username")) {
            connect = connect.simpleAuth()
                    .username(Driver.text(request, "username"))
                    .password(Driver.text(request, "password").getBytes(StandardCharsets.UTF_8))
                    .applySimpleAuth();
        }
        if (request.has("will")) {
            connect = connect.willPublish(message(request.getAsJsonObject("will")));
        }
        return connect.send().handle((connack, error) -> {
            JsonObject answer = new JsonObject();
            if (error == null) {
                isConnected = true;
                answer.addProperty("session_present", connack.isSessionPresent());
            } else if (Driver.cause(error) instanceof Mqtt3ConnAckException) {
                answer = Driver.reason(((Mqtt3ConnAckException) Driver.cause(error)).getMqttMessage().getReturnCode().getCode());
                answer.addProperty("refused", true);
            } else {
                throw new CompletionException(Driver.cause(error));
            }
            return answer;
        });
    }

    private void received(Mqtt3Publish message) {
        Driver.send(Driver.message(
                name, message.getTopic().toString(), message.getPayloadAsBytes(), message.getQos().getCode(), message.isRetain()));
    }

    private static Mqtt3Publish message(JsonObject message) {
        return Mqtt3Publish.builder()
                .topic(Driver.text(message, "topic"))
                .payload(Driver.bytes(message, "payload"))
                .qos(MqttQos.fromCode(message.get("qos").getAsInt()))
                .retain(Driver.flag(message, "retain"))
                .build();
    }

    @Override
    public CompletableFuture<JsonObject> subscribe(JsonObject request) {
        MqttQos qos = MqttQos.fromCode(Driver.number(request, "qos", 0));
        // A refused filter is an error to the client.
        return client.subscribeWith().topicFilter(Driver.text(request, "filter")).qos(qos).send().handle((suback, error) -> {
            List<Mqtt3SubAckReturnCode> codes;
            if (error == null) {
                codes = suback.getReturnCodes();
            } else if (Driver.cause(error) instanceof Mqtt3SubAckException) {
                codes = ((Mqtt3SubAckException) Driver.cause(error)).getMqttMessage().getReturnCodes();
            } else {
                throw new CompletionException(Driver.cause(error));
            }
            return Driver.reason(codes.get(0).getCode());
        });
    }

    @Override
    public CompletableFuture<JsonObject> unsubscribe(JsonObject request) {
        return client.unsubscribeWith().topicFilter(Driver.text(request, "filter")).send().thenApply(done -> new JsonObject());
    }

    @Override
    public CompletableFuture<JsonObject> publish(JsonObject request) {
        return client.publish(message(request)).thenApply(done -> new JsonObject());
    }

    @Override
    public CompletableFuture<JsonObject> disconnect(JsonObject request) {
        return client.disconnect().thenApply(done -> new JsonObject());
    }
}
