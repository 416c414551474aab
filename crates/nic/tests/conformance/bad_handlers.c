/* The firmware with handlers that can be told to do what none may.
 *
 * A first packet whose data begins with SCRIPT says which handler of its message does what, once
 * it runs. The header handler keeps that at the end of the scratch memory, with the message's name,
 * so that the handlers of other messages are as they were. A header handler acts after the good one
 * has accepted the message, the others before the good ones. */
#define header_handler good_header_handler
#define payload_handler good_payload_handler
#define completion_handler good_completion_handler
#define cleanup_handler good_cleanup_handler
#include "good_policies.c"
#undef header_handler
#undef payload_handler
#undef completion_handler
#undef cleanup_handler

enum { SCRIPT = 0xbadc0de };

enum handler { HEADER, PAYLOAD, COMPLETION, CLEANUP };

enum act { STORE, LOAD, SWAP, EXECUTE, TO_HOST, SEND, FREE, MOVE, UNKNOWN };

struct script {
    uint32_t magic;
    uint32_t handler;
    uint32_t act;
    uint32_t first, second, third; /* what the act takes */
    uint32_t request_id;           /* the message's name; not in the packet */
};

static struct script *script_of(const struct nic_task *task)
{
    return (struct script *)(task->scratch + NIC_SCRATCH_BYTES - sizeof(struct script));
}

static void act(const struct nic_task *task, enum handler handler)
{
    const struct script *script = script_of(task);
    uint32_t first = script->first, second = script->second, third = script->third;
    if (script->magic != SCRIPT || script->request_id != task->request_id ||
        script->handler != handler)
        return;
    switch ((enum act)script->act) {
    case STORE:
        *(volatile uint32_t *)first = second;
        break;
    case LOAD:
        (void)*(volatile uint32_t *)first;
        break;
    case SWAP:
        nic_atomic_swap((uint32_t *)first, second);
        break;
    case EXECUTE:
        ((void (*)(void))first)();
        break;
    case TO_HOST:
        nic_to_host(task->scratch, third, first, second);
        break;
    case SEND:
        nic_send(100, 0, 0, 0, second, NULL, (const void *)first);
        break;
    case FREE:
        nic_free(first);
        break;
    case MOVE:
        task->request->address[0] = first;
        task->request->address[1] = second;
        break;
    case UNKNOWN:
        NIC_COMMAND_WORD[0] = first;
        (void)*NIC_COMMAND_ISSUE;
        break;
    }
}

uint32_t header_handler(const struct nic_task *task)
{
    const struct packet_header *packet = header_of(task);
    const struct script *from = (const struct script *)data_of(packet);
    struct script *script = script_of(task);
    uint32_t verdict = good_header_handler(task);
    if (verdict == NIC_ACCEPT && data_len(packet) >= sizeof *from && from->magic == SCRIPT) {
        script->magic = SCRIPT;
        script->handler = from->handler;
        script->act = from->act;
        script->first = from->first;
        script->second = from->second;
        script->third = from->third;
        script->request_id = task->request_id;
    }
    act(task, HEADER);
    return verdict;
}

uint32_t payload_handler(const struct nic_task *task)
{
    act(task, PAYLOAD);
    return good_payload_handler(task);
}

uint32_t completion_handler(const struct nic_task *task)
{
    act(task, COMPLETION);
    return good_completion_handler(task);
}

uint32_t cleanup_handler(const struct nic_task *task)
{
    act(task, CLEANUP);
    return good_cleanup_handler(task);
}
